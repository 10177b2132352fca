package main

import "time"

func (r round[K]) handOver() (answer, error) {
	queue := r.plain("")
	defer queue.ShutDown()
	ring := ring[K]{keys: r.keys.make(min(r.N, spare))}
	latencies := make([]time.Duration, 0, r.N)
	// Written before the key is added, and read by the worker that has received it.
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
