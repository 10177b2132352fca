// River as a contestant of `make bench-store`: it runs rounds as requested on its standard input.
// ../README.md describes the protocol and each scenario.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"
)

type greeting struct {
	Contestant string   `json:"contestant"`
	Version    string   `json:"version"`
	Scenarios  []string `json:"scenarios"`
}

type request struct {
	Scenario string  `json:"scenario"`
	N        int     `json:"n"`
	Tasks    int     `json:"tasks"`
	Batch    int     `json:"batch"`
	Seconds  float64 `json:"seconds"`
}

type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type answer struct {
	Ops     int        `json:"ops,omitempty"`
	WallNs  int64      `json:"wall_ns,omitempty"`
	Latency *quantiles `json:"latency_ns,omitempty"`
	Error   string     `json:"error,omitempty"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "river: say at which address PostgreSQL is")
		os.Exit(1)
	}
	if err := serve(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, address string) error {
	bench, err := prepare(ctx, address)
	if err != nil {
		return err
	}
	defer bench.pool.Close()
	version, err := versions()
	if err != nil {
		return err
	}
	scenarios := map[string]func(context.Context, request) (answer, error){
		"fill": bench.fill, "add": bench.add, "work": bench.work, "latency": bench.latency,
	}
	answers := json.NewEncoder(os.Stdout)
	hello := greeting{Contestant: "river", Version: version}
	for name := range scenarios {
		hello.Scenarios = append(hello.Scenarios, name)
	}
	slices.Sort(hello.Scenarios)
	if err := answers.Encode(hello); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		asked := request{Tasks: 1, Batch: 1}
		err := json.Unmarshal(lines.Bytes(), &asked)
		run, known := scenarios[asked.Scenario]
		if err == nil && !known {
			err = fmt.Errorf("no scenario is called %q", asked.Scenario)
		}
		var told answer
		if err == nil {
			runtime.GC()
			told, err = run(ctx, asked)
		}
		if err != nil {
			told = answer{Error: err.Error()}
		}
		if err := answers.Encode(told); err != nil {
			return err
		}
	}
	return nil
}

func since(start time.Time, ops int) answer {
	return answer{Ops: ops, WallNs: time.Since(start).Nanoseconds()}
}

// versions returns the versions of River and its driver that were built in.
func versions() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("built without modules, so that nobody knows what is measured")
	}
	found := map[string]string{}
	for _, dependency := range info.Deps {
		found[dependency.Path] = dependency.Version[len("v"):]
	}
	return fmt.Sprintf("%s (pgx %s, %s)", found["github.com/riverqueue/river"],
		found["github.com/jackc/pgx/v5"], runtime.Version()), nil
}
