package main

import (
	"fmt"
	"runtime"
	"time"

	"k8s.io/client-go/util/workqueue"
)

func (r round[K]) memory() (answer, error) {
	queue := r.plain("")
	defer queue.ShutDown()
	keys := r.keys.make(r.N)
	before := inUse()
	r.fill(queue, keys)
	queued := r.each(inUse() - before)
	drain(queue, r.N)
	after := r.each(inUse() - before)
	// The strings were allocated before, and must not be freed during the measurement.
	runtime.KeepAlive(keys)
	return answer{Bytes: queued, BytesAfter: after}, nil
}

func (r round[K]) memoryDelayed() (answer, error) {
	queue := r.delayed()
	defer queue.ShutDown()
	keys, delays := r.keys.make(r.N), oneToTwoHours(r.N)
	before := inUse()
	r.addAfter(queue, keys, delays)
	waiting := r.each(inUse() - before)
	runtime.KeepAlive(keys)
	runtime.KeepAlive(delays)
	return answer{Bytes: waiting}, nil
}

func (r round[K]) each(bytes float64) *float64 {
	each := bytes / float64(r.N)
	return &each
}

func (r round[K]) memoryIdle() (answer, error) {
	names := r.queueNames(r.Metrics)
	before := inUse()
	idle := r.idle(names)
	each := r.each(inUse() - before)
	shutDown(idle)
	runtime.KeepAlive(names)
	return answer{Bytes: each}, nil
}

func (r round[K]) idleProcessor() (answer, error) {
	if err := r.forSeconds(); err != nil {
		return answer{}, err
	}
	idle := r.idle(r.queueNames(true))
	defer shutDown(idle)
	section := begin()
	time.Sleep(r.duration())
	return section.end(r.N), nil
}

// queuesNamed is the number of named queues so far. Each name is used once, because the series of a
// queue outlive it.
var queuesNamed int

// queueNames returns the names of n queues, which are empty for queues without metrics.
func (r round[K]) queueNames(metrics bool) []string {
	names := make([]string, r.N)
	if metrics {
		for i := range names {
			names[i] = fmt.Sprintf("idle-%d", queuesNamed)
			queuesNamed++
		}
	}
	return names
}

func (r round[K]) idle(names []string) []workqueue.TypedRateLimitingInterface[K] {
	queues := make([]workqueue.TypedRateLimitingInterface[K], len(names))
	for i, name := range names {
		queues[i] = r.limited(name, r.limiter())
	}
	return queues
}

func shutDown[K comparable](queues []workqueue.TypedRateLimitingInterface[K]) {
	for _, queue := range queues {
		queue.ShutDown()
	}
}
