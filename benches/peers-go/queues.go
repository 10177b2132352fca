package main

import (
	"errors"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
	// Installs the metrics that Kubernetes' own programs use.
	_ "k8s.io/component-base/metrics/prometheus/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

// queues creates queues of a library, with metrics if they have a name. It also has the operations
// that are not part of the common interface.
type queues[K comparable] interface {
	// plain is the simplest queue of the library.
	plain(name string) workqueue.TypedInterface[K]
	limited(name string, limiter workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimitingInterface[K]
	// limiter is the default limiter of controllers.
	limiter() workqueue.TypedRateLimiter[K]
	addAll(queue workqueue.TypedInterface[K], keys []K)
	// settle returns when the queue has processed all adds.
	settle(queue workqueue.TypedInterface[K])
	// timeToAdd is a time that is sufficient for adding n keys with a delay.
	timeToAdd(n int) time.Duration
}

type clientGo[K comparable] struct {
	// A key that is not used otherwise.
	other K
}

func (clientGo[K]) plain(name string) workqueue.TypedInterface[K] {
	return workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: name})
}

func (clientGo[K]) limited(name string, limiter workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimitingInterface[K] {
	config := workqueue.TypedRateLimitingQueueConfig[K]{Name: name}
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, config)
}

func (clientGo[K]) limiter() workqueue.TypedRateLimiter[K] {
	return workqueue.DefaultTypedControllerRateLimiter[K]()
}

func (clientGo[K]) addAll(workqueue.TypedInterface[K], []K) {
	panic("it has no batches")
}

// settle sends another key through the channel of the waiting loop, and takes it from the queue.
func (c clientGo[K]) settle(queue workqueue.TypedInterface[K]) {
	delaying, ok := queue.(workqueue.TypedDelayingInterface[K])
	if !ok {
		return
	}
	delaying.AddAfter(c.other, time.Nanosecond)
	for {
		key, _ := queue.Get()
		queue.Done(key)
		if key == c.other {
			return
		}
	}
}

func (clientGo[K]) timeToAdd(n int) time.Duration {
	return time.Second/2 + time.Duration(n)*5*time.Microsecond
}

// checkProvider returns an error unless the queues have the metrics of component-base.
// controller-runtime would install its own, and the first installation wins.
func checkProvider() error {
	workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[int]{Name: "first"}).ShutDown()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		if family.GetName() == "workqueue_depth" && len(family.GetMetric()) > 0 {
			return nil
		}
	}
	return errors.New("queues do not have the metrics of component-base")
}

type controllerRuntime[K comparable] struct{}

func (controllerRuntime[K]) plain(name string) workqueue.TypedInterface[K] {
	return priorityqueue.New[K](name)
}

func (controllerRuntime[K]) limited(name string, limiter workqueue.TypedRateLimiter[K]) workqueue.TypedRateLimitingInterface[K] {
	return priorityqueue.New(name, func(options *priorityqueue.Opts[K]) { options.RateLimiter = limiter })
}

// limiter is the one that controller-runtime's controllers use with a priority queue.
func (controllerRuntime[K]) limiter() workqueue.TypedRateLimiter[K] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[K](5*time.Millisecond, 1000*time.Second)
}

func (controllerRuntime[K]) addAll(queue workqueue.TypedInterface[K], keys []K) {
	queue.(priorityqueue.PriorityQueue[K]).AddWithOpts(priorityqueue.AddOpts{}, keys...)
}

// settle reads the length, which first flushes the buffer.
func (controllerRuntime[K]) settle(queue workqueue.TypedInterface[K]) {
	queue.Len()
}

func (controllerRuntime[K]) timeToAdd(n int) time.Duration {
	return time.Second/2 + time.Duration(n)*20*time.Microsecond
}
