package record

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	fakes "k8s.io/utils/clock/testing"
)

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func backoffName(b wait.Backoff) string {
	return fmt.Sprintf("backoff(%d,%s,%s,%d,%d)", b.Duration, number(b.Factor), number(b.Jitter), b.Steps, b.Cap)
}

func (s *sequence) backoff() wait.Backoff {
	return wait.Backoff{
		Duration: pick(s, time.Second, time.Millisecond, s.duration(time.Hour), 0),
		Factor:   pick(s, 2, 2, 1, 0, 0.5, 1.5, 3, s.Float64()*5, 1e6),
		Steps:    pick(s, 0, -1, 1, 3, 6, s.IntN(20), math.MaxInt32),
		Cap:      pick(s, 0, 0, time.Second, s.duration(time.Hour), s.duration(1000*time.Hour)),
	}
}

// backoffs records each step of a backoff. With jitter, the delay is random, so only its bounds are recorded. The
// fields after a step are not random.
func (s *sequence) backoffs() {
	s.head("backoff", "")
	for range 12 {
		b := s.backoff()
		if s.oneIn(3) {
			b.Jitter = pick(s, 0.1, 0.5, 1, 4, -1)
		}
		name := backoffName(b)
		var steps []string
		for range 16 {
			if b.Steps > 0 && float64(b.Duration)*b.Factor >= math.MaxInt64 {
				// Go's result depends on the processor.
				steps = append(steps, "overflow")
				break
			}
			was, before := b.Duration, b.Jitter
			delay := b.Step()
			if before > 0 {
				if most := was + time.Duration(float64(was)*before); delay < was || delay > most {
					panic(fmt.Sprintf("%s: %d is not within [%d, %d]", name, delay, was, most))
				}
				delay = was
			}
			steps = append(steps, fmt.Sprintf("%d/%d/%d", delay, b.Duration, b.Steps))
		}
		s.line(name, "steps="+join(steps))
	}
}

// timers is a clock whose timers only record their durations.
type timers struct {
	*fakes.FakeClock
	ran *time.Duration
}

func (t timers) NewTimer(d time.Duration) clock.Timer {
	*t.ran = d
	return timer{ran: t.ran}
}

type timer struct {
	clock.Timer
	ran *time.Duration
}

func (t timer) Reset(d time.Duration) bool {
	*t.ran = d
	return false
}

// managers records backoff managers that reset after a quiet time, and those that reset after a
// fixed time.
func (s *sequence) managers() {
	s.head("manager", "")
	for range 6 {
		var ran time.Duration
		c := timers{fakes.NewFakeClock(time.Now()), &ran}
		reset := pick(s, time.Second, 10*time.Second, time.Minute)
		var name string
		var next func()
		switch s.IntN(4) {
		case 0, 1:
			b := s.backoff()
			b.Factor, b.Steps = pick(s, 1, 1.5, 2, 3), pick(s, 2, 5, 30)
			if s.oneIn(5) {
				reset = 0
			}
			f := b.DelayWithReset(c, reset)
			name = fmt.Sprintf("delay_with_reset(%d,%s)", reset, backoffName(b))
			next = func() { ran = f() }
		case 2:
			initial, most := s.duration(10*time.Second), s.duration(time.Hour)
			factor := pick(s, 1, 1.5, 2, 3)
			m := wait.NewExponentialBackoffManager(initial, most, reset, factor, 0, c)
			name = fmt.Sprintf("exponential_manager(%d,%d,%d,%s)", initial, most, reset, number(factor))
			next = func() { m.Backoff() }
		case 3:
			period, jitter := s.duration(time.Hour), pick(s, 0.0, -1)
			m := wait.NewJitteredBackoffManager(period, jitter, c)
			name = fmt.Sprintf("jittered_manager(%d,%s)", period, number(jitter))
			next = func() { m.Backoff() }
		}
		var delays []string
		for range 14 {
			by := pick(s, 0, reset, reset+1, reset-1, s.duration(time.Minute))
			by = max(by, 0)
			c.Step(by)
			next()
			delays = append(delays, fmt.Sprintf("%d/%d", by, ran))
		}
		s.line(name, "delays="+join(delays))
	}
}

// --- Loops --------------------------------------------------------------------------------------

var errScript = errors.New("the condition fails")

// A script contains the duration of each run of a loop's function, and the result of the last run.
type script struct {
	*sequence
	start  time.Time
	took   []time.Duration
	result string
	cancel context.CancelFunc
	starts []time.Duration
}

// run performs one run. It returns whether the condition is true, or an error.
func (s *script) run() (bool, error) {
	n := len(s.starts)
	s.starts = append(s.starts, time.Since(s.start))
	time.Sleep(s.took[n%len(s.took)])
	if n+1 < len(s.took) {
		return false, nil
	}
	switch s.result {
	case "true":
		return true, nil
	case "error":
		return false, errScript
	case "stop":
		s.cancel()
	}
	return false, nil
}

func errorName(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errScript):
		return "error"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded), wait.Interrupted(err):
		return "timeout"
	default:
		panic(err)
	}
}

// loops records the start of each run, and the end and the result of the loop. Stops and deadlines are at odd
// nanoseconds, and timers at even ones, because the order of two simultaneous events is random.
func (s *sequence) loops() {
	s.head("loop", "")
	for range 5 {
		even := func(d time.Duration) time.Duration { return (d + 1) &^ 1 }
		interval := even(s.duration(time.Minute))
		runs := &script{sequence: s}
		short := s.oneIn(2)
		for range s.IntN(7) + 1 {
			took := pick(s, 0, even(s.duration(time.Minute)), even(s.between(0, 3*interval)))
			if short {
				took = even(took%interval) &^ 1
			}
			runs.took = append(runs.took, took)
		}
		stop := s.between(interval/2, 8*interval) | 1
		if s.oneIn(8) {
			stop = 0
		}
		b := s.backoff()
		b.Duration, b.Factor = interval, pick(s, 1.0, 2, 4)
		b.Cap = pick(s, 0, even(s.between(interval/2, 20*interval)))
		b.Steps = pick(s, 0, 1, 3, 5)
		sliding, immediate := s.oneIn(2), s.oneIn(2)

		kind := s.IntN(5)
		if kind == 0 {
			runs.result = "stop"
		} else {
			runs.result = pick(s, "true", "error", "stop", "stop")
		}
		// Without an external stop, the script must end the loop. It is repeated until then.
		ctx, cancel := context.WithCancel(context.Background())
		runs.cancel = cancel
		runs.start = time.Now()
		if stop == 0 {
			cancel()
		} else {
			time.AfterFunc(stop, cancel)
		}
		loop := func(ctx context.Context) { _, _ = runs.run() }
		condition := func(ctx context.Context) (bool, error) { return runs.run() }
		var name string
		var err error
		switch kind {
		case 0:
			name = fmt.Sprintf("jitter_until(%d,%t)", interval, sliding)
			wait.JitterUntilWithContext(ctx, loop, interval, 0, sliding)
		case 1:
			name = fmt.Sprintf("backoff_until(%d,%d,%s,%t)", interval, b.Cap, number(b.Factor), sliding)
			m := wait.NewExponentialBackoffManager(interval, b.Cap, time.Hour, b.Factor, 0, clock.RealClock{})
			wait.BackoffUntilWithContext(ctx, loop, m, sliding)
		case 2:
			timeout := pick(s, 0, s.between(interval/2, 8*interval)|1)
			if timeout == stop {
				timeout += 2
			}
			name = fmt.Sprintf("poll(%d,%d,%t)", interval, timeout, immediate)
			if timeout == 0 {
				err = wait.PollUntilContextCancel(ctx, interval, immediate, condition)
			} else {
				err = wait.PollUntilContextTimeout(ctx, interval, timeout, immediate, condition)
			}
		case 3:
			name = fmt.Sprintf("delays_until(%s,%t,%t)", backoffName(b), immediate, sliding)
			err = b.DelayFunc().Until(ctx, immediate, sliding, condition)
		case 4:
			name = fmt.Sprintf("exponential_backoff(%s)", backoffName(b))
			err = wait.ExponentialBackoffWithContext(ctx, b, condition)
		}
		end := time.Since(runs.start)
		cancel()
		synctest.Wait()
		s.line(fmt.Sprintf("%s stop=%d took=%s last=%s", name, stop, join(nanosOf(runs.took)), runs.result),
			"starts="+join(nanosOf(runs.starts)), fmt.Sprintf("end=%d", end), "result="+errorName(err))
	}
}

func nanosOf(durations []time.Duration) []int64 {
	all := make([]int64, len(durations))
	for i, d := range durations {
		all[i] = d.Nanoseconds()
	}
	return all
}
