package main

import (
	"fmt"
	"sync"
	"sync/atomic"
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
