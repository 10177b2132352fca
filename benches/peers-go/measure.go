package main

import (
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"syscall"
	"time"
)

// section is the measured part of a round.
type section struct {
	wall      time.Time
	processor time.Duration
}

func begin() section {
	runtime.GC()
	return section{time.Now(), processorTime()}
}

func (s section) end(ops int) answer {
	return s.endAt(time.Now(), ops)
}

func (s section) endAt(end time.Time, ops int) answer {
	return answer{times: &times{ops, end.Sub(s.wall), processorTime() - s.processor}}
}

// processorTime returns the time that this process has used so far.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		// It fails only for invalid arguments.
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// inUse returns the bytes of the heap and of stacks that are in use after a garbage collection.
func inUse() float64 {
	// Values with a finalizer or in a sync.Pool are freed by the second collection.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc + stats.StackInuse)
}

type quantiles struct {
	Median time.Duration `json:"p50"`
	High   time.Duration `json:"p99"`
}

func quantilesOf(list []time.Duration) *quantiles {
	slices.Sort(list)
	at := func(part float64) time.Duration {
		return list[int(math.Round(part*float64(len(list)-1)))]
	}
	return &quantiles{at(0.5), at(0.99)}
}

// othersWait returns when all other goroutines are blocked.
func othersWait() {
	samples := []metrics.Sample{
		{Name: "/sched/goroutines/runnable:goroutines"},
		{Name: "/sched/goroutines/running:goroutines"},
	}
	for {
		metrics.Read(samples)
		if samples[0].Value.Uint64() == 0 && samples[1].Value.Uint64() <= 1 {
			return
		}
		runtime.Gosched()
	}
}
