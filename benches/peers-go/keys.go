package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/types"
)

// spare is the number of keys of a ring that are not queued.
const spare = 65_536

// keys is a kind of keys.
type keys[K comparable] struct {
	// make returns n distinct keys, the same ones in every round.
	make func(n int) []K
	// other is a key that make never returns.
	other K
}

var numbers = keys[uint64]{
	make: func(n int) []uint64 {
		list := make([]uint64, n)
		for i := range list {
			list[i] = uint64(i)
		}
		return list
	},
	other: math.MaxUint64,
}

var names = keys[types.NamespacedName]{
	make: func(n int) []types.NamespacedName {
		var namespaces [100]string
		for i := range namespaces {
			namespaces[i] = fmt.Sprintf("namespace-%02d", i)
		}
		list := make([]types.NamespacedName, n)
		for i := range list {
			list[i] = types.NamespacedName{
				Namespace: namespaces[i%len(namespaces)],
				Name:      fmt.Sprintf("object-%07d", i),
			}
		}
		// In a controller's memory, objects that change in sequence are not neighbours.
		shuffle(list)
		return list
	},
	// Its length differs from all others, so that comparisons with it cost almost nothing.
	other: types.NamespacedName{Namespace: "elsewhere", Name: "other"},
}

func mapped[A, B comparable](from keys[A], by func(A) B) keys[B] {
	return keys[B]{
		make: func(n int) []B {
			list := make([]B, n)
			for i, key := range from.make(n) {
				list[i] = by(key)
			}
			return list
		},
		other: by(from.other),
	}
}

// chance is a source of random numbers that is the same in every round.
func chance() *rand.Rand {
	return rand.New(rand.NewPCG(1, 2))
}

func shuffle[T any](list []T) {
	chance().Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// ring is an endless cycle of keys.
type ring[K comparable] struct {
	keys []K
	at   int
}

func (r *ring[K]) next() K {
	key := r.keys[r.at]
	if r.at++; r.at == len(r.keys) {
		r.at = 0
	}
	return key
}

// batch returns the next n keys. The ring must have that many. It skips a rest at the end that is
// too short.
func (r *ring[K]) batch(n int) []K {
	if r.at+n > len(r.keys) {
		r.at = 0
	}
	keys := r.keys[r.at : r.at+n : r.at+n]
	r.at += n
	return keys
}
