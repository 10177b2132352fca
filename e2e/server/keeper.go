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

// keeper sees to it that nothing outlives the tests: it leads the process group that all of a
// server's processes are in, and when its standard input ends, because the test wants it to or is
// gone, by whatever signal, it removes the directory and kills the group, itself last of all.
// SIGKILL, because some may be stopped, and there is nothing worth saving.
//
// Before, it makes the key that service accounts' tokens are signed with, and says "ready".
func keeper(dir string) error {
	if syscall.Getpgrp() != os.Getpid() {
		return errors.New("keeper: not the leader of a process group, so that it has none to kill")
	}
	// Not even a reader that is gone may end it.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	if err := writeKey(filepath.Join(dir, "sa.key")); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	// Whoever creates a file there meanwhile is in the way of it.
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
