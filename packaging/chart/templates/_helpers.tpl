{{- define "requeue.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "requeue.account" -}}
{{- default (ternary (include "requeue.name" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "requeue.lease" -}}
{{- default (include "requeue.name" .) .Values.leaderElection.lease -}}
{{- end -}}

{{- define "requeue.namespace" -}}
{{- default .Release.Namespace .Values.watch.namespace -}}
{{- end -}}

{{- define "requeue.matchLabels" -}}
app.kubernetes.io/name: requeue-watch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "requeue.labels" -}}
{{ include "requeue.matchLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* The resource of `requeue watch`: configmaps, deployments.apps */ -}}
{{- define "requeue.resource" -}}
{{- .plural }}{{ with .group }}.{{ . }}{{ end -}}
{{- end -}}

{{- define "requeue.rule" -}}
- apiGroups: [{{ .resource.group | default "" | quote }}]
  resources: [{{ .resource.plural | quote }}]
  verbs: {{ toJson .verbs }}
{{ end -}}

{{- /* The rules for the watched namespace, or for the whole cluster. */ -}}
{{- define "requeue.rules" -}}
{{- $watch := .Values.watch -}}
{{- $verbs := list "list" "watch" -}}
{{- if $watch.finalizer }}{{ $verbs = append $verbs "patch" }}{{ end -}}
{{- include "requeue.rule" (dict "resource" $watch.resource "verbs" $verbs) -}}
{{- range concat $watch.owns $watch.allOn $watch.snapshots -}}
{{- if not .clusterScoped }}{{ include "requeue.rule" (dict "resource" . "verbs" (list "list" "watch")) }}{{ end -}}
{{- end -}}
{{- with .Values.rbac.rules }}{{ toYaml . }}
{{ end -}}
{{- end -}}

{{- /* The rules for resources without a namespace, besides the watched one. */ -}}
{{- define "requeue.clusterRules" -}}
{{- range concat .Values.watch.allOn .Values.watch.snapshots -}}
{{- if .clusterScoped }}{{ include "requeue.rule" (dict "resource" . "verbs" (list "list" "watch")) }}{{ end -}}
{{- end -}}
{{- end -}}
