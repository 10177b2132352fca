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

{{- /* `name` is that of the only object that the rule is for. */ -}}
{{- define "requeue.rule" -}}
- apiGroups: [{{ .resource.group | default "" | quote }}]
  resources: [{{ .resource.plural | quote }}]
  {{- with .name }}
  resourceNames: [{{ . | quote }}]
  {{- end }}
  verbs: {{ toJson .verbs }}
{{ end -}}

{{- /* The rules to read related objects: those without a namespace, or the others. `name` is an object in `allOn`, and a
name for the command in `snapshots`. */ -}}
{{- define "requeue.readRules" -}}
{{- $verbs := list "list" "watch" -}}
{{- $clusterScoped := .clusterScoped -}}
{{- range .watch.owns }}{{ if eq (default false .clusterScoped) $clusterScoped -}}
{{ include "requeue.rule" (dict "resource" . "verbs" $verbs) }}{{ end }}{{ end -}}
{{- range .watch.allOn }}{{ if eq (default false .clusterScoped) $clusterScoped -}}
{{ include "requeue.rule" (dict "resource" . "name" .name "verbs" $verbs) }}{{ end }}{{ end -}}
{{- range .watch.snapshots }}{{ if eq (default false .clusterScoped) $clusterScoped -}}
{{ include "requeue.rule" (dict "resource" . "verbs" $verbs) }}{{ end }}{{ end -}}
{{- end -}}

{{- /* The rules for the watched namespace, or for the whole cluster. */ -}}
{{- define "requeue.rules" -}}
{{- $watch := .Values.watch -}}
{{- $verbs := list "list" "watch" -}}
{{- if $watch.finalizer }}{{ $verbs = append $verbs "patch" }}{{ end -}}
{{- include "requeue.rule" (dict "resource" $watch.resource "verbs" $verbs) -}}
{{- include "requeue.readRules" (dict "watch" $watch "clusterScoped" false) -}}
{{- with .Values.rbac.rules }}{{ toYaml . }}
{{ end -}}
{{- end -}}

{{- /* The rules for resources without a namespace, besides the watched one. */ -}}
{{- define "requeue.clusterRules" -}}
{{- include "requeue.readRules" (dict "watch" .Values.watch "clusterScoped" true) -}}
{{- end -}}
