package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// contended lets producers add distinct keys while workers take them. A round counts only if each
// key was delivered once.
func (r round[K]) contended() (answer, error) {
	numbers, ok := any(r).(round[uint64])
	if !ok {
		return answer{Unsupported: r.Scenario + " adds up its keys, which have to be integers"}, nil
	}
	return contendedNumbers(numbers)
}

func contendedNumbers(r round[uint64]) (answer, error) {
	queue := r.plain("")
	defer queue.ShutDown()
	keys, steps := r.keys.make(r.N), busySteps(time.Duration(r.Work))
	type worker struct {
		keys int
		// The sum of its keys. The total shows whether each key was delivered.
		sum uint64
		end time.Time
	}
	all := make([]worker, r.Workers)
	start := make(chan struct{})
	var producers, workers sync.WaitGroup
	for i := range all {
		workers.Go(func() {
			var mine worker
			// The key `other` ends a worker, which adds it again for the next one. Workers share no data
			// that changes with each key.
			for {
				key, _ := queue.Get()
				if key == r.keys.other {
					break
				}
				mine.keys++
				mine.sum += key
				spin(steps)
				queue.Done(key)
			}
			mine.end = time.Now()
			queue.Done(r.keys.other)
			queue.Add(r.keys.other)
			all[i] = mine
		})
	}
	for i := range r.Producers {
		producers.Go(func() {
			<-start
			for _, key := range keys[i*r.N/r.Producers : (i+1)*r.N/r.Producers] {
				queue.Add(key)
			}
		})
	}
	othersWait()
	section := begin()
	close(start)
	producers.Wait()
	queue.Add(r.keys.other)
	workers.Wait()

	var delivered worker
	for _, worker := range all {
		delivered.keys += worker.keys
		delivered.sum += worker.sum
		if worker.end.After(delivered.end) {
			delivered.end = worker.end
		}
	}
	var added uint64
	for _, key := range keys {
		added += key
	}
	if delivered.keys != r.N {
		return answer{}, fmt.Errorf("%d keys of %d were delivered", delivered.keys, r.N)
	}
	if delivered.sum != added {
		return answer{}, errors.New("some keys were delivered twice, and others never")
	}
	return section.endAt(delivered.end, r.N), nil
}
