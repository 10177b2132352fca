// Package record runs client-go's work queue and apimachinery's wait loops through seeded random
// sequences, and records their behaviour, step by step. requeue's tests replay the recording.
//
// The recorder is a test, because testing/synctest requires a test. It needs synctest because the token bucket of
// golang.org/x/time/rate reads the machine's clock. In a bubble, that clock is a fake clock, which advances only when
// all goroutines wait. conformance/README.md describes the format.
package record
