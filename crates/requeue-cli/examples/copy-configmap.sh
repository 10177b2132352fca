#!/bin/sh
# Keeps a copy of the ConfigMap `default/shared` in every namespace: at once where a namespace is new, and within
# $RESYNC where the original or a copy has changed. Copies its `data` alone.
exec requeue watch namespaces --on apply --resync "${RESYNC:-1m}" -c '
    [ "$1" != default ] || exit 0
    data=$(kubectl get configmap shared --namespace default -o "jsonpath={.data}") || exit
    kubectl apply --server-side --force-conflicts --namespace "$1" -f - <<END
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": ${data:-null}}
END'
