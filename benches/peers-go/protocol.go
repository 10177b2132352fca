package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

type greeting struct {
	Contestant string   `json:"contestant"`
	Version    string   `json:"version"`
	Scenarios  []string `json:"scenarios"`
}

type request struct {
	Scenario  string  `json:"scenario"`
	Keys      string  `json:"keys"`
	N         int     `json:"n"`
	Depth     int     `json:"depth"`
	Producers int     `json:"producers"`
	Workers   int     `json:"workers"`
	Batch     int     `json:"batch"`
	Work      int64   `json:"work_ns"`
	Seconds   float64 `json:"seconds"`
	Metrics   bool    `json:"metrics"`
}

// answer omits the fields that do not apply.
type answer struct {
	*times
	Lateness    *quantiles `json:"lateness_ns,omitempty"`
	Latency     *quantiles `json:"latency_ns,omitempty"`
	Bytes       *float64   `json:"bytes,omitempty"`
	BytesAfter  *float64   `json:"bytes_after,omitempty"`
	Unsupported string     `json:"unsupported,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// times are the times of a measured section.
type times struct {
	Ops       int           `json:"ops"`
	Wall      time.Duration `json:"wall_ns"`
	Processor time.Duration `json:"cpu_ns"`
}

func parseRequest(line []byte) (request, error) {
	asked := request{Keys: "u64", Producers: 1, Workers: 1, Batch: 1}
	decoder := json.NewDecoder(bytes.NewReader(line))
	// A misspelt field would otherwise give the figures of another request.
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil {
		return asked, fmt.Errorf("%s is no request: %w", line, err)
	}
	if asked.Keys != "u64" && asked.Keys != "name" {
		return asked, fmt.Errorf("keys are u64 or name, not %q", asked.Keys)
	}
	if asked.N < 1 {
		return asked, fmt.Errorf("n is %d, and at least 1 is wanted", asked.N)
	}
	if asked.Depth < 0 || asked.Seconds < 0 {
		return asked, fmt.Errorf("depth %d and seconds %g can't be below 0", asked.Depth, asked.Seconds)
	}
	if asked.Producers < 1 || asked.Workers < 1 {
		return asked, fmt.Errorf("%d producers and %d workers: at least 1 each is wanted", asked.Producers, asked.Workers)
	}
	if asked.Batch < 1 || asked.Batch > spare {
		return asked, fmt.Errorf("batch is %d, and 1 to %d are wanted", asked.Batch, spare)
	}
	if asked.Work < 0 || asked.Work > int64(time.Second) {
		return asked, fmt.Errorf("work_ns is %d, and 0 to %d are wanted", asked.Work, time.Second.Nanoseconds())
	}
	return asked, nil
}

func (r request) duration() time.Duration {
	return time.Duration(r.Seconds * float64(time.Second))
}

// inDepth checks requests for scenarios that need queued keys.
func (r request) inDepth() error {
	if r.Depth < 1 {
		return fmt.Errorf("%s needs a depth of at least 1", r.Scenario)
	}
	return nil
}

// forSeconds checks requests for scenarios with a duration.
func (r request) forSeconds() error {
	if r.Seconds == 0 {
		return fmt.Errorf("%s needs seconds above 0", r.Scenario)
	}
	return nil
}
