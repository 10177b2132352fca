package record

import "time"

// ties records keys that are due at the same time, which are delivered in the order of a heap.
func (s *sequence) ties() {
	r := newQueueRun(s, "ties", "delaying", s.oneIn(2))
	defer r.close()
	for range s.IntN(3) + 1 {
		d := s.duration(time.Minute) + time.Microsecond
		early := s.between(0, time.Microsecond)
		keys := append([]string(nil), r.keys...)
		s.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for i, key := range keys {
			if i == len(keys)/2 && early > 0 {
				r.sleep(early)
				d -= early
			}
			r.addAfter(key, d)
		}
		r.sleep(d)
		for range keys {
			r.get()
		}
		for _, key := range r.keys {
			r.done(key)
		}
	}
	s.void = false
}
