package record

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	out     = flag.String("out", "", "write all sequences to this file, compressed")
	compare = flag.String("compare", "", "record all sequences, and say where this file has something else")
	one     = flag.Uint64("seed", 0, "print the sequence of this seed")
)

// Seeds are numbered from 1. The number determines the kind of sequence.
const seeds = 2000

func record(t *testing.T, seed uint64) *sequence {
	s := newSequence(seed)
	synctest.Test(t, func(*testing.T) {
		switch seed % 20 {
		case 0:
			s.backoffs()
		case 1:
			s.managers()
		case 2, 3:
			s.loops()
		case 4:
			s.ties()
		case 5, 6, 7:
			s.limiters()
		default:
			s.queues()
		}
	})
	return s
}

//go:embed go.mod
var goMod string

// versions returns the versions of the recorded modules, as go.mod pins them.
func versions() string {
	var all []string
	for line := range strings.Lines(goMod) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.ContainsAny(fields[0], "/") {
			all = append(all, fields[0]+"@"+fields[1])
		}
	}
	return strings.Join(all, " ")
}

func recordAll(t *testing.T) []byte {
	var all, body bytes.Buffer
	sequences, void := 0, 0
	for seed := uint64(1); seed <= seeds; seed++ {
		s := record(t, seed)
		if s.void {
			void++
			continue
		}
		sequences++
		body.WriteString(s.text.String())
	}
	fmt.Fprintf(&all, "# %s generator=%d seeds=1..%d sequences=%d void=%d\n", versions(), Generator, seeds, sequences, void)
	all.Write(body.Bytes())
	return all.Bytes()
}

func TestRecord(t *testing.T) {
	switch {
	case *one != 0:
		fmt.Print(record(t, *one).text.String())
	case *out != "":
		var packed bytes.Buffer
		w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		text := recordAll(t)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(*out, packed.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "\n")
		fmt.Printf("%s\n%d bytes, %d compressed\n", head, len(text), packed.Len())
	case *compare != "":
		file, err := os.Open(*compare)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		unpacked, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		committed, err := io.ReadAll(unpacked)
		if err != nil {
			t.Fatal(err)
		}
		differ(t, string(committed), string(recordAll(t)))
	default:
		// A seed must produce the same sequence every time. The test checks some sequences of each kind.
		for seed := uint64(1); seed <= 60; seed++ {
			if a, b := record(t, seed).text.String(), record(t, seed).text.String(); a != b {
				t.Errorf("seed %d: not the same twice", seed)
			}
		}
	}
}

// differ reports the first difference, with its sequence and the two lines.
func differ(t *testing.T, committed, recorded string) {
	was, is := strings.Split(committed, "\n"), strings.Split(recorded, "\n")
	head := ""
	for i := range max(len(was), len(is)) {
		var a, b string
		if i < len(was) {
			a = was[i]
		}
		if i < len(is) {
			b = is[i]
		}
		if a != b {
			t.Fatalf("line %d, in %q:\n  committed: %s\n  recorded:  %s", i+1, head, a, b)
		}
		if strings.HasPrefix(a, "sequence ") {
			head = a
		}
	}
	fmt.Printf("%s\nall %d lines are recorded anew as they are committed\n", was[0], len(was)-1)
}
