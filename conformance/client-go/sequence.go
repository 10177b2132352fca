package record

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Generator is part of every seed, so a change of this number changes all sequences.
const Generator = 3

// A sequence is a head line, and a line for each step: the operation, and its observed effects.
type sequence struct {
	*rand.Rand
	seed  uint64
	text  strings.Builder
	state map[string]string
	// True if the result is not deterministic, so that the sequence is dropped.
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

// line records a step: the operation, and all its observed effects.
func (s *sequence) line(did string, saw ...string) {
	s.text.WriteString(strings.TrimRight(did+" | "+strings.Join(saw, " "), " "))
	s.text.WriteByte('\n')
}

// changed adds the value after a step, if it differs from the value before the step.
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

// duration returns a duration from a nanosecond to most. All magnitudes are equally likely.
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
