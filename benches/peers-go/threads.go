package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

func (r round[K]) threads() (answer, error) {
	queue := r.plain("")
	defer queue.ShutDown()
	keys := r.keys.make(r.N)
	var producers, workers sync.WaitGroup
	var handedOut atomic.Int64

	section := begin()
	for range r.Workers {
		workers.Go(func() {
			// The last key of all ends a worker, and is handed on to the next one: nothing that
			// workers share has to be touched for each key.
			var mine int64
			for {
				key, _ := queue.Get()
				queue.Done(key)
				if key == r.keys.other {
					break
				}
				mine++
			}
			queue.Add(r.keys.other)
			handedOut.Add(mine)
		})
	}
	for i := range r.Producers {
		producers.Go(func() {
			for _, key := range keys[i*r.N/r.Producers : (i+1)*r.N/r.Producers] {
				queue.Add(key)
			}
		})
	}
	producers.Wait()
	queue.Add(r.keys.other)
	workers.Wait()
	told := section.end(r.N)

	if n := handedOut.Load(); n != int64(r.N) {
		return answer{}, fmt.Errorf("%d keys were handed out, of %d", n, r.N)
	}
	return told, nil
}

func (r round[K]) handOver() (answer, error) {
	queue := r.plain("")
	defer queue.ShutDown()
	ring := ring[K]{keys: r.keys.make(min(r.N, spare))}
	latencies := make([]time.Duration, 0, r.N)
	// Written before the key is added, and read by the worker that has got it.
	var added time.Time
	done := make(chan struct{})
	go func() {
		for {
			key, shutDown := queue.Get()
			if shutDown {
				return
			}
			latencies = append(latencies, time.Since(added))
			queue.Done(key)
			done <- struct{}{}
		}
	}()
	for range r.N {
		othersWait()
		key := ring.next()
		added = time.Now()
		queue.Add(key)
		<-done
	}
	return answer{Latency: quantilesOf(latencies)}, nil
}
