package record

import (
	"fmt"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	fakes "k8s.io/utils/clock/testing"
)

// queueRun drives one queue. synctest.Wait follows each operation, so that its effects in other
// goroutines have happened before they are recorded.
type queueRun struct {
	*sequence
	*spy
	layer string
	keys  []string
	// The clock of the queue, or nil if it uses the bubble's clock.
	fake  *fakes.FakeClock
	start time.Time

	inner    *workqueue.Typed[string]
	outer    workqueue.TypedInterface[string]
	delaying workqueue.TypedDelayingInterface[string]
	limited  workqueue.TypedRateLimitingInterface[string]
	limiter  namedLimiter
	delay    time.Duration

	// The state from which operations that have an effect are chosen.
	processing map[string]bool
	pending    map[string]time.Duration
	shut       bool

	mutex    sync.Mutex
	waiting  int
	ended    int
	drains   int
	returned []int
}

func (s *sequence) queues() {
	r := newQueueRun(s, "queue", pick(s, "plain", "delaying", "delaying", "limited", "limited", "limited", "limited"), s.oneIn(3))
	defer r.close()
	r.random()
	switch {
	case s.oneIn(8):
		r.doneOfReady()
	case s.oneIn(8):
		r.abandoned()
	}
}

func newQueueRun(s *sequence, kind, layer string, flows bool) *queueRun {
	r := &queueRun{
		sequence:   s,
		layer:      layer,
		keys:       []string{"a", "b", "c", "d", "e", "f"}[:s.IntN(5)+2],
		start:      time.Now(),
		processing: map[string]bool{},
		pending:    map[string]time.Duration{},
	}
	var by clock.WithTicker = clock.RealClock{}
	if !flows {
		r.fake = fakes.NewFakeClock(r.start)
		by = r.fake
	}
	r.spy = &spy{now: func() time.Duration { return by.Now().Sub(r.start) }, flows: flows}
	r.inner = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{
		Name: "q", MetricsProvider: r.spy, Clock: by, Queue: r.spy,
	})
	r.outer = r.inner
	if layer != "plain" {
		r.delaying = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
			Name: "q", MetricsProvider: r.spy, Clock: by, Queue: r.inner,
		})
		r.outer = r.delaying
	}
	r.limiter.name = "none"
	if layer == "limited" {
		r.limiter = s.randomLimiter(0)
		r.limited = workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.TypedRateLimiter[string](watched{r.limiter.limiter, &r.delay}),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "q", Clock: by, DelayingQueue: r.delaying},
		)
		r.outer = r.limited
	}
	time := "jumps"
	if flows {
		time = "flows"
	}
	s.head(kind, "layer=%s time=%s keys=%s limiter=%s", layer, time, join(r.keys), r.limiter.name)
	synctest.Wait()
	return r
}

// close stops every goroutine, as the bubble requires.
func (r *queueRun) close() {
	r.outer.ShutDown()
	r.inner.ShutDown()
	synctest.Wait()
}

// step performs an operation, waits for its effects, and records everything that is observable.
func (r *queueRun) step(what string, do func()) {
	r.begin()
	r.delay = -1
	ended, returned := r.ended, len(r.returned)
	do()
	synctest.Wait()
	for _, key := range r.popped {
		r.processing[key[:1]] = true
	}
	for key, due := range r.pending {
		if due <= r.now() {
			delete(r.pending, key)
		}
	}

	var saw []string
	list := func(name string, parts string) {
		if parts != "" {
			saw = append(saw, name+"="+parts)
		}
	}
	list("got", join(r.popped))
	if r.ended > ended {
		saw = append(saw, fmt.Sprintf("ended=%d", r.ended-ended))
	}
	// The order in which the calls return is random.
	slices.Sort(r.returned[returned:])
	list("drained", join(r.returned[returned:]))
	if r.delay >= 0 {
		saw = append(saw, fmt.Sprintf("delay=%d", r.delay))
	}
	list("queued", join(r.latencies))
	list("worked", join(r.work))
	list("unfinished", join(r.unfinished))
	list("touched", join(r.touched))
	saw = r.changed(saw, "len", r.outer.Len())
	saw = r.changed(saw, "depth", r.depth)
	saw = r.changed(saw, "adds", r.adds)
	saw = r.changed(saw, "retries", r.retries)
	if r.outer.ShuttingDown() {
		saw = r.changed(saw, "shut", 1)
	}
	if r.layer == "limited" {
		for _, key := range r.keys {
			saw = r.changed(saw, "requeues."+key, r.limited.NumRequeues(key))
		}
	}
	r.line(what, saw...)
}

// --- Operations ---------------------------------------------------------------------------------

func (r *queueRun) add(key string) { r.step("add "+key, func() { r.outer.Add(key) }) }

func (r *queueRun) addAfter(key string, d time.Duration) {
	r.step(fmt.Sprintf("add_after %s %d", key, d), func() { r.delaying.AddAfter(key, d) })
	r.due(key, d)
}

func (r *queueRun) addRateLimited(key string) {
	r.step("add_rate_limited "+key, func() { r.limited.AddRateLimited(key) })
	r.due(key, r.delay)
}

func (r *queueRun) retry(key string) {
	r.step("retry "+key, func() {
		r.limited.AddRateLimited(key)
		synctest.Wait()
		r.outer.Done(key)
	})
	delete(r.processing, key)
	r.reap()
	r.due(key, r.delay)
}

func (r *queueRun) succeed(key string) {
	r.step("succeed "+key, func() {
		r.limited.Forget(key)
		r.outer.Done(key)
	})
	delete(r.processing, key)
	r.reap()
}

func (r *queueRun) later(key string, d time.Duration) {
	r.step(fmt.Sprintf("later %s %d", key, d), func() {
		r.limited.Forget(key)
		r.limited.AddAfter(key, d)
		synctest.Wait()
		r.outer.Done(key)
	})
	delete(r.processing, key)
	r.reap()
	r.due(key, d)
}

func (r *queueRun) done(key string) {
	r.step("done "+key, func() { r.outer.Done(key) })
	delete(r.processing, key)
	r.reap()
}

// reap records that a completed key may have been delivered immediately to a waiting getter.
func (r *queueRun) reap() {
	for _, key := range r.popped {
		r.processing[key[:1]] = true
	}
}

func (r *queueRun) forget(key string) { r.step("forget "+key, func() { r.limited.Forget(key) }) }

func (r *queueRun) get() {
	r.step("get", func() {
		if _, end := r.outer.Get(); end {
			r.ended++
		}
	})
}

// wait starts a goroutine that waits for a key in an empty queue.
func (r *queueRun) wait() {
	r.step("wait", func() {
		r.waiting++
		go func() {
			_, end := r.outer.Get()
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.waiting--
			if end {
				r.ended++
			}
		}()
	})
}

func (r *queueRun) drain() {
	r.shut = true
	clear(r.pending)
	r.step("drain", func() {
		number := r.drains
		r.drains++
		go func() {
			r.outer.ShutDownWithDrain()
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.returned = append(r.returned, number)
		}()
	})
}

func (r *queueRun) shutDown() {
	r.shut = true
	clear(r.pending)
	r.step("shut_down", func() { r.outer.ShutDown() })
}

// sleep advances both clocks, because the token bucket reads the machine's clock.
func (r *queueRun) sleep(d time.Duration) {
	r.step(fmt.Sprintf("sleep %d", d), func() {
		time.Sleep(d)
		if r.fake != nil {
			r.fake.Step(d)
		}
	})
}

// due records the due time of a key. Other sequences cover equal due times.
func (r *queueRun) due(key string, d time.Duration) {
	if d <= 0 || r.shut {
		return
	}
	at := r.now() + d
	if was, ok := r.pending[key]; !ok || at < was {
		r.pending[key] = at
	}
	for other, due := range r.pending {
		r.void = r.void || other != key && due == r.pending[key]
	}
}
