package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// keeper stops all processes of a server when the test ends. It leads the process group of these
// processes. Its standard input ends when the test closes it or dies. The keeper then removes the
// directory and kills the group, itself included. It uses SIGKILL because processes may be stopped,
// and because there is no state to save.
//
// At its start, it writes the key that signs the tokens of service accounts, and prints "ready".
func keeper(dir string) error {
	if syscall.Getpgrp() != os.Getpid() {
		return errors.New("keeper: not the leader of a process group, so that it has none to kill")
	}
	// A closed standard output must not end the keeper either.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	if err := writeKey(filepath.Join(dir, "sa.key")); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	// The removal fails if a process creates a file in the directory meanwhile.
	for range 10 {
		if os.RemoveAll(dir) == nil {
			break
		}
	}
	return syscall.Kill(0, syscall.SIGKILL)
}

func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return os.WriteFile(path, text, 0o600)
}
