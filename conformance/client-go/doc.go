// Package record runs client-go's work queue and apimachinery's wait loops through seeded random
// sequences, and writes down what they did, step by step. requeue's tests replay all of it.
//
// It is a test, because testing/synctest wants one: the bucket of golang.org/x/time/rate reads the
// machine's clock, and in a bubble that is a fake one, which moves only when everybody waits.
// docs/CONFORMANCE.md says how to read what comes out.
package record
