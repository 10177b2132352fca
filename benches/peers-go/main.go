// Peers-go measures the work queues of Kubernetes' controllers in Go, round by round, as requested
// on its standard input. README.md describes the protocol and each scenario.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// contestant is a library whose queues are measured.
type contestant struct {
	name   string
	module string
	// The scenarios that it does not support, with the reasons.
	unsupported map[string]string
	run         func(request) (answer, error)
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peers-go:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("say which contestant: client-go or controller-runtime")
	}
	who, err := named(args[0])
	if err != nil {
		return err
	}
	version, err := versionOf(who.module)
	if err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	err = answers.Encode(greeting{who.name, version, slices.DeleteFunc(scenarioNames(), func(name string) bool {
		return who.unsupported[name] != ""
	})})
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if err := answers.Encode(who.answer(lines.Bytes())); err != nil {
			return err
		}
	}
	return lines.Err()
}

func named(name string) (*contestant, error) {
	switch name {
	case "client-go":
		return &contestant{
			name:   name,
			module: "k8s.io/client-go",
			unsupported: map[string]string{
				"batch":    "client-go has no batches",
				"snapshot": "client-go tells how many are queued, and not which",
			},
			run: runner(
				clientGo[uint64]{numbers.other}, clientGo[types.NamespacedName]{names.other}, names,
			),
		}, checkProvider()
	case "controller-runtime":
		requests := mapped(names, func(name types.NamespacedName) reconcile.Request {
			return reconcile.Request{NamespacedName: name}
		})
		return &contestant{
			name:   name,
			module: "sigs.k8s.io/controller-runtime",
			unsupported: map[string]string{
				"snapshot": "controller-runtime tells how many are queued, and not which",
			},
			run: runner(controllerRuntime[uint64]{}, controllerRuntime[reconcile.Request]{}, requests),
		}, nil
	default:
		return nil, fmt.Errorf("no contestant is named %q: there are client-go and controller-runtime", name)
	}
}

// runner runs a round with the requested kind of keys.
func runner[N comparable](ofNumbers queues[uint64], ofNames queues[N], names keys[N]) func(request) (answer, error) {
	return func(asked request) (answer, error) {
		if asked.Keys == "name" {
			return runRound(round[N]{asked, ofNames, names})
		}
		return runRound(round[uint64]{asked, ofNumbers, numbers})
	}
}

func (c *contestant) answer(line []byte) answer {
	asked, err := parseRequest(line)
	if err != nil {
		return answer{Error: err.Error()}
	}
	if why := c.unsupported[asked.Scenario]; why != "" {
		return answer{Unsupported: why}
	}
	told, err := c.run(asked)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return told
}

// versionOf returns the version of a module that was built in.
func versionOf(module string) (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("built without modules, so that nobody knows what is measured")
	}
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version[len("v"):], nil
		}
	}
	return "", fmt.Errorf("built without %s", module)
}
