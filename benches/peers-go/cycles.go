package main

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

func (r round[K]) cycle() (answer, error) {
	return r.cycleOf(r.plain(""))
}

func (r round[K]) cycleMetrics() (answer, error) {
	return r.cycleOf(r.plain("cycle"))
}

func (r round[K]) cycleWaiting() (answer, error) {
	queue := r.delayed()
	queue.AddAfter(r.keys.other, time.Hour)
	return r.cycleOf(queue)
}

func (r round[K]) cycleOf(queue workqueue.TypedInterface[K]) (answer, error) {
	defer queue.ShutDown()
	ring := r.fillDepth(queue)
	section := begin()
	for range r.N {
		queue.Add(ring.next())
		key, _ := queue.Get()
		queue.Done(key)
	}
	return section.end(r.N), nil
}

// fillDepth queues the keys that stay queued all the time, and returns their ring.
func (r round[K]) fillDepth(queue workqueue.TypedInterface[K]) *ring[K] {
	ring := &ring[K]{keys: r.keys.make(r.Depth + spare)}
	r.fill(queue, ring.keys[:r.Depth])
	ring.at = r.Depth
	return ring
}

func (r round[K]) batches() (answer, error) {
	queue := r.plain("")
	defer queue.ShutDown()
	ring := r.fillDepth(queue)
	section := begin()
	for left := r.N; left > 0; left -= r.Batch {
		n := min(left, r.Batch)
		r.addAll(queue, ring.batch(n))
		drain(queue, n)
	}
	return section.end(r.N), nil
}

func (r round[K]) addQueued() (answer, error) {
	if err := r.inDepth(); err != nil {
		return answer{}, err
	}
	queue := r.plain("")
	defer queue.ShutDown()
	ring := &ring[K]{keys: r.keys.make(r.Depth)}
	r.fill(queue, ring.keys)
	section := begin()
	for range r.N {
		queue.Add(ring.next())
	}
	r.settle(queue)
	return section.end(r.N), nil
}

func (r round[K]) fillDrain() (answer, error) {
	queue := r.plain("")
	defer queue.ShutDown()
	keys := r.keys.make(r.N)
	section := begin()
	for _, key := range keys {
		queue.Add(key)
	}
	drain(queue, r.N)
	return section.end(r.N), nil
}
