package record

import (
	"fmt"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"
)

type limiter = workqueue.TypedRateLimiter[string]

// A limiter and its name in the traces, with its parameters in nanoseconds.
type namedLimiter struct {
	limiter
	name string
}

func exponential(base, most time.Duration) namedLimiter {
	return namedLimiter{
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](base, most),
		fmt.Sprintf("exponential(%d,%d)", base, most),
	}
}

func fastSlow(fast, slow time.Duration, attempts int) namedLimiter {
	return namedLimiter{
		workqueue.NewTypedItemFastSlowRateLimiter[string](fast, slow, attempts),
		fmt.Sprintf("fast_slow(%d,%d,%d)", fast, slow, attempts),
	}
}

func bucket(qps rate.Limit, burst int) namedLimiter {
	name := fmt.Sprintf("bucket(%v,%d)", float64(qps), burst)
	if qps == rate.Inf {
		name = fmt.Sprintf("bucket(inf,%d)", burst)
	}
	return namedLimiter{&workqueue.TypedBucketRateLimiter[string]{Limiter: rate.NewLimiter(qps, burst)}, name}
}

// randomLimiter returns a limiter of any kind in client-go, with sensible or absurd parameters.
func (s *sequence) randomLimiter(depth int) namedLimiter {
	switch s.IntN(10 - 2*min(depth, 1)) {
	case 0, 1, 2:
		return exponential(s.base(), pick(s, time.Second, 1000*time.Second, s.duration(time.Hour), 0))
	case 3, 4:
		return fastSlow(s.base(), s.duration(time.Hour), pick(s, 0, 1, 3, s.IntN(8)))
	case 5, 6:
		qps := pick(s, 10, 0.5, 1000/3.0, rate.Limit(s.IntN(100)+1), rate.Limit(s.Float64()*50), 0, rate.Inf)
		return bucket(qps, pick(s, 1, 2, 5, 100, 0))
	case 7:
		if s.oneIn(3) {
			return namedLimiter{workqueue.DefaultTypedItemBasedRateLimiter[string](), "default_item_based"}
		}
		return namedLimiter{workqueue.DefaultTypedControllerRateLimiter[string](), "default_controller"}
	case 8:
		a, b := s.randomLimiter(depth+1), s.randomLimiter(depth+1)
		return namedLimiter{
			workqueue.NewTypedMaxOfRateLimiter[string](a.limiter, b.limiter),
			fmt.Sprintf("max_of(%s,%s)", a.name, b.name),
		}
	default:
		inner, most := s.randomLimiter(depth+1), s.duration(time.Hour)
		return namedLimiter{
			workqueue.NewTypedWithMaxWaitRateLimiter(inner.limiter, most),
			fmt.Sprintf("max_wait(%d,%s)", most, inner.name),
		}
	}
}

func (s *sequence) base() time.Duration {
	return pick(s, time.Millisecond, 5*time.Millisecond, time.Second, s.duration(time.Minute), 0)
}

// limiters calls a limiter without a queue, often enough to empty the largest bucket and to
// overflow the exponent.
func (s *sequence) limiters() {
	l := s.randomLimiter(0)
	keys := []string{"a", "b", "c"}[:s.IntN(3)+1]
	s.head("limiter", "limiter=%s", l.name)
	forgets, sleeps := pick(s, 0, 1, 10), pick(s, 0, 5, 20)
	most := pick(s, time.Microsecond, time.Second, time.Minute)
	steps := pick(s, 20, 40, 60, 150)
	for range steps {
		key := pick(s, keys...)
		switch at := s.IntN(100); {
		case at < forgets:
			l.Forget(key)
			s.line("forget "+key, fmt.Sprintf("requeues=%d", l.NumRequeues(key)))
		case at < forgets+sleeps:
			d := s.duration(most)
			time.Sleep(d)
			synctest.Wait()
			s.line(fmt.Sprintf("sleep %d", d))
		default:
			delay := l.When(key)
			s.line("when "+key, fmt.Sprintf("delay=%d", delay), fmt.Sprintf("requeues=%d", l.NumRequeues(key)))
		}
	}
}
