package main

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

// controllers runs two controllers of kube-controller-manager that the tests depend on: the
// namespace controller, which completes the deletion of namespaces, and the garbage collector.
func controllers(kubeconfig string) error {
	ctx := context.Background()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	meta, err := metadata.NewForConfig(metadata.ConfigFor(config))
	if err != nil {
		return err
	}
	informed := informers.NewSharedInformerFactory(client, 0)
	metaInformed := metadatainformer.NewSharedInformerFactory(meta, 0)
	started := make(chan struct{})

	namespaces := namespace.NewNamespaceController(ctx, client, meta,
		client.Discovery().ServerPreferredNamespacedResources,
		informed.Core().V1().Namespaces(), 5*time.Minute, v1.FinalizerKubernetes)

	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	graph := garbagecollector.NewDependencyGraphBuilder(ctx, meta, mapper,
		garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(informed, metaInformed), started)
	garbage, err := garbagecollector.NewComposedGarbageCollector(ctx, client, meta, mapper, graph)
	if err != nil {
		return err
	}

	informed.Start(ctx.Done())
	metaInformed.Start(ctx.Done())
	close(started)
	// Up to here, an error of the API server ends the process. The tests wait for this line.
	fmt.Fprintln(os.Stderr, "controllers have started")
	go namespaces.Run(ctx, 4)
	go garbage.Run(ctx, 4, 10*time.Second)
	// The garbage collector finds new custom resources within about a second.
	garbage.Sync(ctx, client.Discovery(), time.Second)
	return nil
}
