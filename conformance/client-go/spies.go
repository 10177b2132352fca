package record

import (
	"fmt"
	"math"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// All functions in this file are called under the queue's lock, or by the only goroutine that drives the queue. The
// recorded values are read when all other goroutines wait.

// spy observes a queue from the inside: deliveries in their order, and every metric.
type spy struct {
	queue []string
	// The deliveries and touched keys since the start of the step.
	popped, touched []string
	latencies       []int64
	work            []int64
	unfinished      []string
	depth           int
	adds, retries   int

	now func() time.Duration
	// The start of the step, and whether times within it can differ.
	began time.Duration
	flows bool
}

func (s *spy) begin() {
	s.popped, s.touched, s.latencies, s.work, s.unfinished = nil, nil, nil, nil, nil
	s.began = s.now()
}

// at returns the time since the start of the step, if time can pass within it.
func (s *spy) at() string {
	if !s.flows || s.now() == s.began {
		return ""
	}
	return fmt.Sprintf("@%d", s.now()-s.began)
}

func (s *spy) Touch(key string) { s.touched = append(s.touched, key) }
func (s *spy) Push(key string)  { s.queue = append(s.queue, key) }
func (s *spy) Len() int         { return len(s.queue) }
func (s *spy) Pop() string {
	key := s.queue[0]
	s.queue = s.queue[1:]
	s.popped = append(s.popped, key+s.at())
	return key
}

type (
	inc     func(int)
	observe func(float64)
)

func (f inc) Inc()                  { f(1) }
func (f inc) Dec()                  { f(-1) }
func (f observe) Observe(v float64) { f(v) }
func (f observe) Set(v float64)     { f(v) }

func nanos(seconds float64) int64 { return int64(math.Round(seconds * 1e9)) }

func (s *spy) NewDepthMetric(string) workqueue.GaugeMetric {
	return inc(func(by int) { s.depth += by })
}

func (s *spy) NewAddsMetric(string) workqueue.CounterMetric {
	return inc(func(by int) { s.adds += by })
}

func (s *spy) NewRetriesMetric(string) workqueue.CounterMetric {
	return inc(func(by int) { s.retries += by })
}

func (s *spy) NewLatencyMetric(string) workqueue.HistogramMetric {
	return observe(func(v float64) { s.latencies = append(s.latencies, nanos(v)) })
}

func (s *spy) NewWorkDurationMetric(string) workqueue.HistogramMetric {
	return observe(func(v float64) { s.work = append(s.work, nanos(v)) })
}

func (s *spy) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return observe(func(v float64) { s.unfinished = []string{fmt.Sprint(nanos(v))} })
}

// This gauge is set after the other one. The last values of a step are recorded.
func (s *spy) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return observe(func(v float64) { s.unfinished = append(s.unfinished, fmt.Sprint(nanos(v))+s.at()) })
}

// watched is a limiter that stores its last delay.
type watched struct {
	limiter
	delay *time.Duration
}

func (w watched) When(key string) time.Duration {
	delay := w.limiter.When(key)
	*w.delay = delay
	return delay
}
