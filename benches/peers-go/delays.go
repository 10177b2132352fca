package main

import (
	"errors"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// oneToTwoHours returns a delay for each of n keys.
func oneToTwoHours(n int) []time.Duration {
	list := make([]time.Duration, n)
	for i := range list {
		list[i] = time.Hour + time.Hour*time.Duration(i)/time.Duration(n)
	}
	shuffle(list)
	return list
}

func (r round[K]) delayedAdd() (answer, error) {
	queue := r.delayed()
	defer queue.ShutDown()
	keys, delays := r.keys.make(r.N), oneToTwoHours(r.N)
	section := begin()
	r.addAfter(queue, keys, delays)
	return section.end(r.N), nil
}

// addAfter adds each key with its delay, and waits until the queue has accepted all of them.
func (r round[K]) addAfter(queue workqueue.TypedRateLimitingInterface[K], keys []K, delays []time.Duration) {
	for i, key := range keys {
		queue.AddAfter(key, delays[i])
	}
	r.settle(queue)
}

func (r round[K]) delayedReAdd() (answer, error) {
	if err := r.inDepth(); err != nil {
		return answer{}, err
	}
	queue := r.delayed()
	defer queue.ShutDown()
	keys := r.keys.make(r.Depth)
	r.addAfter(queue, keys, oneToTwoHours(r.Depth))
	again, delays := make([]K, r.N), make([]time.Duration, r.N)
	random := chance()
	for i := range again {
		again[i] = keys[random.IntN(len(keys))]
		delays[i] = time.Hour + time.Duration(random.Int64N(int64(time.Hour)))
	}
	section := begin()
	r.addAfter(queue, again, delays)
	return section.end(r.N), nil
}

func (r round[K]) fire() (answer, error) {
	if err := r.forSeconds(); err != nil {
		return answer{}, err
	}
	return r.fireEach(r.duration() / time.Duration(r.N))
}

func (r round[K]) sparseTimers() (answer, error) {
	return r.fireEach(10 * time.Millisecond)
}

// fireEach lets one key fall due per step.
func (r round[K]) fireEach(step time.Duration) (answer, error) {
	type handedOut struct {
		key K
		at  time.Time
	}
	queue := r.delayed()
	defer queue.ShutDown()
	keys := r.keys.make(r.N)
	order := make([]int, r.N)
	for i := range order {
		order[i] = i
	}
	shuffle(order)
	log := make([]handedOut, 0, r.N)

	first := time.Now().Add(r.timeToAdd(r.N))
	due := make(map[K]time.Time, r.N)
	for _, i := range order {
		due[keys[i]] = first.Add(step * time.Duration(i))
	}
	for _, i := range order {
		queue.AddAfter(keys[i], time.Until(due[keys[i]]))
	}
	r.settle(queue)
	section := begin()
	if time.Now().After(first) {
		return answer{}, errors.New("keys fell due before all had been added: the machine has too much else to do")
	}
	for range r.N {
		key, _ := queue.Get()
		log = append(log, handedOut{key, time.Now()})
		queue.Done(key)
	}
	told := section.end(r.N)

	lateness := make([]time.Duration, r.N)
	for i, entry := range log {
		lateness[i] = entry.at.Sub(due[entry.key])
	}
	told.Lateness = quantilesOf(lateness)
	return told, nil
}

func (r round[K]) rateLimitedAdd() (answer, error) {
	queue := r.delayed()
	defer queue.ShutDown()
	keys := r.keys.make(r.N)
	section := begin()
	for _, key := range keys {
		queue.AddRateLimited(key)
	}
	r.settle(queue)
	return section.end(r.N), nil
}

func (r round[K]) forget() (answer, error) {
	limiter := r.limiter()
	queue := r.limited("", limiter)
	defer queue.ShutDown()
	keys := r.keys.make(r.N)
	for _, key := range keys {
		// Call only the limiter: with the queue, keys would be waiting.
		limiter.When(key)
	}
	section := begin()
	for _, key := range keys {
		queue.Forget(key)
	}
	return section.end(r.N), nil
}
