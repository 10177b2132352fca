package record

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Generator is part of every seed: what a seed leads to changes with it.
const Generator = 3

// A sequence is a head line, and a line for each step: what was done, and what was seen of it.
type sequence struct {
	*rand.Rand
	seed  uint64
	text  strings.Builder
	state map[string]string
	// Whether it can't be told what comes of it, so that it is thrown away.
	void bool
}

func newSequence(seed uint64) *sequence {
	return &sequence{
		Rand:  rand.New(rand.NewPCG(seed, Generator)),
		seed:  seed,
		state: map[string]string{},
	}
}

func (s *sequence) head(kind, format string, args ...any) {
	fmt.Fprintf(&s.text, "sequence %d %s %s\n", s.seed, kind, fmt.Sprintf(format, args...))
}

// line is a step: what was done, and all that was seen of it.
func (s *sequence) line(did string, saw ...string) {
	s.text.WriteString(strings.TrimRight(did+" | "+strings.Join(saw, " "), " "))
	s.text.WriteByte('\n')
}

// changed is the value that a step leaves behind, if it is another than before it.
func (s *sequence) changed(saw []string, name string, value any) []string {
	text := fmt.Sprint(value)
	if was, ok := s.state[name]; ok && was == text || !ok && text == "0" {
		return saw
	}
	s.state[name] = text
	return append(saw, name+"="+text)
}

func (s *sequence) oneIn(n int) bool { return s.IntN(n) == 0 }

func (s *sequence) between(least, most time.Duration) time.Duration {
	return least + time.Duration(s.Int64N(int64(most-least)+1))
}

func pick[T any](s *sequence, from ...T) T { return from[s.IntN(len(from))] }

// duration is anything from a nanosecond to most, all magnitudes alike.
func (s *sequence) duration(most time.Duration) time.Duration {
	limit := time.Nanosecond
	for limit < most && !s.oneIn(12) {
		limit *= 10
	}
	return s.between(1, min(limit, most))
}

func join[T any](parts []T) string {
	texts := make([]string, len(parts))
	for i, part := range parts {
		texts[i] = fmt.Sprint(part)
	}
	return strings.Join(texts, ",")
}
