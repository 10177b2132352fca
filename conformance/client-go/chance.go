package record

import (
	"slices"
	"time"
)

func (r *queueRun) random() {
	// Some sequences omit some operations entirely.
	weights := map[string]int{}
	names := []string{"add", "get", "done"}
	names = append(names, pick(r.sequence, []string{"wait"}, nil)...)
	if r.layer != "plain" {
		names = append(names, "add_after", "sleep")
	} else {
		names = append(names, "sleep")
	}
	if r.layer == "limited" {
		names = append(names, "add_rate_limited", "retry", "succeed", "later", "forget")
	}
	total := 0
	for _, name := range names {
		weights[name] = pick(r.sequence, 0, 1, 2, 4, 8)
		total += weights[name]
	}
	weights["add"]++
	weights["get"]++
	total += 2
	ending := 1000
	if r.oneIn(3) {
		ending = r.IntN(40) + 5
	}
	for n := range r.IntN(60) + 15 {
		if n >= ending && r.oneIn(pick(r.sequence, 2, 6)) {
			if ending := pick(r.sequence, r.drain, r.drain, r.shutDown); r.drains < 3 {
				ending()
			} else {
				r.shutDown()
			}
			continue
		}
		at := r.IntN(total)
		for _, name := range names {
			if at < weights[name] {
				r.do(name)
				break
			}
			at -= weights[name]
		}
	}
}

func (r *queueRun) do(name string) {
	key := pick(r.sequence, r.keys...)
	worked, busy := r.worked()
	switch name {
	case "add":
		r.add(key)
	case "add_after":
		r.addAfter(key, r.own(key, r.someDelay()))
	case "add_rate_limited":
		r.nudge()
		r.addRateLimited(key)
	case "forget":
		r.forget(key)
	case "get":
		if len(r.queue) > 0 || r.shut {
			r.get()
		}
	case "wait":
		if len(r.queue) == 0 && !r.shut && r.waiting < 3 {
			r.wait()
		}
	case "sleep":
		// The next add goes after the keys that have just become due.
		again := busy && r.oneIn(3)
		if again {
			r.add(worked)
		}
		r.sleep(r.someSleep())
		if again {
			r.done(worked)
		} else if key, waits := r.waits(); waits && r.oneIn(3) {
			r.add(key)
		}
	case "done":
		switch {
		case busy:
			r.done(worked)
		case r.oneIn(4) && !slices.Contains(r.queue, key):
			// The key is neither in flight nor ready, so this has no effect.
			r.done(key)
		}
	case "retry":
		if busy {
			r.nudge()
			r.retry(worked)
		}
	case "succeed":
		if busy {
			r.succeed(worked)
		}
	case "later":
		if busy {
			r.later(worked, r.own(worked, r.someDelay()))
		}
	}
}

// worked returns a key that is in flight.
func (r *queueRun) worked() (string, bool) {
	return r.any(func(key string) bool { return r.processing[key] })
}

// waits returns a key that is not due yet.
func (r *queueRun) waits() (string, bool) {
	return r.any(func(key string) bool { return r.pending[key] > r.now() })
}

func (r *queueRun) any(is func(string) bool) (string, bool) {
	all := slices.DeleteFunc(slices.Clone(r.keys), func(key string) bool { return !is(key) })
	if len(all) == 0 {
		return "", false
	}
	return pick(r.sequence, all...), true
}

func (r *queueRun) someDelay() time.Duration {
	return pick(r.sequence, 0, time.Millisecond, time.Second, 10*time.Second, r.duration(time.Minute))
}

// own returns the delay, or a slightly longer one, so that no other key is due at the same time.
func (r *queueRun) own(key string, d time.Duration) time.Duration {
	for d > 0 {
		taken := false
		for other, due := range r.pending {
			taken = taken || other != key && due == r.now()+d
		}
		if !taken {
			break
		}
		d++
	}
	return d
}

// nudge advances the clock slightly, so that two keys with equal failures are not due at the same time.
func (r *queueRun) nudge() {
	if len(r.pending) > 0 {
		r.sleep(r.between(1, 999))
	}
}

func (r *queueRun) someSleep() time.Duration {
	var next time.Duration
	for _, due := range r.pending {
		if left := due - r.now(); next == 0 || left < next {
			next = left
		}
	}
	// The bubble executes every tick of the metrics' goroutine.
	most := 3 * time.Hour
	if r.flows {
		most = time.Minute
	}
	if next > 1 && next < most && r.oneIn(2) {
		return pick(r.sequence, next, next, next-1, next+1, next+r.duration(time.Minute))
	}
	return r.duration(time.Minute)
}

// --- Operations that must be the last, because requeue behaves differently after them -------------------------

// doneOfReady completes a key that is ready and not in flight, and then takes all keys.
func (r *queueRun) doneOfReady() {
	if len(r.queue) == 0 {
		return
	}
	r.done(pick(r.sequence, r.queue...))
	r.takeAll()
}

// abandoned simulates a worker that panics between Get and Done. After that, all waiting keys become due.
func (r *queueRun) abandoned() {
	key, busy := r.worked()
	if !busy || r.shut || r.waiting > 0 || r.flows {
		return
	}
	if r.layer == "limited" && r.IntN(4) > 0 {
		return
	}
	r.step("abandon "+key, func() {})
	r.sleep(24 * time.Hour)
	r.takeAll()
}

func (r *queueRun) takeAll() {
	r.step("take_all", func() {
		for r.outer.Len() > 0 {
			r.outer.Get()
		}
	})
}
