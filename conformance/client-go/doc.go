// Package record runs client-go's work queue and apimachinery's wait loops through seeded random
// sequences, and records their behaviour, step by step. requeue's tests replay the recording.
//
// It is a test, because testing/synctest requires one: the token bucket of golang.org/x/time/rate
// reads the machine's clock. In a bubble, that is a fake clock, which moves only when all
// goroutines wait. conformance/README.md describes the format.
package record
