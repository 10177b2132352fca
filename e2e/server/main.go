// The parts of a Kubernetes cluster without nodes, in one program, for the end-to-end tests.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

const usage = `usage: kubetest etcd FLAGS...
       kubetest apiserver FLAGS...
       kubetest controllers KUBECONFIG
       kubetest keeper DIR`

func main() {
	if len(os.Args) < 2 {
		fail(usage)
	}
	// The embedded programs read their flags from the second argument on.
	os.Args = os.Args[1:]
	switch command := os.Args[0]; {
	case command == "etcd":
		etcdmain.Main(os.Args)
	case command == "apiserver":
		os.Exit(cli.Run(app.NewAPIServerCommand()))
	case command == "controllers" && len(os.Args) == 2:
		fail(controllers(os.Args[1]))
	case command == "keeper" && len(os.Args) == 2:
		fail(keeper(os.Args[1]))
	default:
		fail(usage)
	}
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
