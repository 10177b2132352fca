package main

import "time"

// The steps of a trial, which takes about 0.1 ms, and the number of trials for the calibration. The
// fastest one counts, because other load can only make a trial slower.
const (
	trialSteps = 50_000
	trials     = 50
)

// busySteps returns the number of steps that take this long on an idle processor. Work is a number
// of steps and not a deadline, so that a preempted goroutine still has all of its work to do.
// src/busy.rs takes the same steps and calibrates them in the same way.
func busySteps(work time.Duration) int {
	if work == 0 {
		return 0
	}
	fastest := time.Duration(1<<63 - 1)
	for range trials {
		start := time.Now()
		spin(trialSteps)
		fastest = min(fastest, time.Since(start))
	}
	return int(float64(work) / float64(max(fastest, 1)) * trialSteps)
}

// spin takes steps of a xorshift generator: each needs the result of the one before it.
//
//go:noinline
func spin(steps int) uint64 {
	state := uint64(1)
	for range steps {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
	}
	return state
}
