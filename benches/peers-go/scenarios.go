package main

import (
	"fmt"

	"k8s.io/client-go/util/workqueue"
)

// round is one round of a scenario.
type round[K comparable] struct {
	request
	queues[K]
	keys keys[K]
}

type scenario[K comparable] struct {
	name string
	run  func(round[K]) (answer, error)
}

func scenarios[K comparable]() []scenario[K] {
	return []scenario[K]{
		{"cycle", round[K].cycle},
		{"batch", round[K].batches},
		{"cycle_metrics", round[K].cycleMetrics},
		{"cycle_waiting", round[K].cycleWaiting},
		{"add_queued", round[K].addQueued},
		{"fill_drain", round[K].fillDrain},
		{"threads", round[K].contended},
		{"tasks", round[K].contended},
		{"delayed_add", round[K].delayedAdd},
		{"delayed_readd", round[K].delayedReAdd},
		{"fire", round[K].fire},
		{"sparse_timers", round[K].sparseTimers},
		{"rate_limited_add", round[K].rateLimitedAdd},
		{"forget", round[K].forget},
		{"hand_over", round[K].handOver},
		{"memory", round[K].memory},
		{"memory_delayed", round[K].memoryDelayed},
		{"memory_idle", round[K].memoryIdle},
		{"idle_cpu", round[K].idleProcessor},
	}
}

func scenarioNames() []string {
	var names []string
	for _, scenario := range scenarios[uint64]() {
		names = append(names, scenario.name)
	}
	return names
}

func runRound[K comparable](r round[K]) (answer, error) {
	for _, scenario := range scenarios[K]() {
		if scenario.name == r.Scenario {
			return scenario.run(r)
		}
	}
	return answer{}, fmt.Errorf("there is no scenario %q", r.Scenario)
}

// delayed returns a queue with all operations, without metrics.
func (r round[K]) delayed() workqueue.TypedRateLimitingInterface[K] {
	return r.limited("", r.limiter())
}

// fill adds keys, and waits until the queue has accepted them.
func (r round[K]) fill(queue workqueue.TypedInterface[K], keys []K) {
	for _, key := range keys {
		queue.Add(key)
	}
	r.settle(queue)
}

// drain takes and completes n keys.
func drain[K comparable](queue workqueue.TypedInterface[K], n int) {
	for range n {
		key, _ := queue.Get()
		queue.Done(key)
	}
}
