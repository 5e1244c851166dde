{{- define "tokengauge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tokengauge.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "tokengauge.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "tokengauge.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* For objects of the whole cluster: two releases of one name may live in two namespaces. */}}
{{- define "tokengauge.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "tokengauge.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tokengauge.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tokengauge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tokengauge.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "tokengauge.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tokengauge.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tokengauge.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tokengauge.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Where OTLP goes: what is said, else the chart's own Collector, else nowhere. */}}
{{- define "tokengauge.endpoint" -}}
{{- if .Values.otlp.endpoint }}
{{- .Values.otlp.endpoint }}
{{- else if .Values.collector.enabled }}
{{- printf "http://%s-collector.%s.svc:4317" (include "tokengauge.fullname" .) .Release.Namespace }}
{{- end }}
{{- end }}

{{/* Folders with SLO files, one for each ConfigMap: a mount inside a ConfigMap's own mount cannot be made. */}}
{{- define "tokengauge.sloFolders" -}}
{{- if .Values.slos.files }}
- {name: {{ include "tokengauge.fullname" . }}-slos, path: /etc/tokengauge-slos/chart}
{{- end }}
{{- range .Values.slos.configMaps }}
- {name: {{ . }}, path: /etc/tokengauge-slos/configmap-{{ . }}}
{{- end }}
{{- end }}

{{/* What the chart itself says in the agent's file. The endpoint is not in it: it goes by the environment, where Kubernetes fills in $(HOST_IP). */}}
{{- define "tokengauge.derived" -}}
{{- if .Values.http.enabled }}
http:
  listen: {{ printf "%s:%d" .Values.http.address (int .Values.http.port) | quote }}
  metrics: {{ .Values.http.metrics }}
  {{- if .Values.http.tlsSecret }}
  tls: {certificate: /etc/tokengauge-tls/tls.crt, key: /etc/tokengauge-tls/tls.key}
  {{- end }}
  {{- if .Values.http.tokenSecret.name }}
  bearer_token_file: /etc/tokengauge-token/{{ .Values.http.tokenSecret.key }}
  {{- end }}
{{- end }}
{{- $queue := and .Values.otlp.queue.enabled (include "tokengauge.endpoint" .) }}
{{- if or $queue .Values.otlp.intervalSeconds }}
otlp:
  {{- with .Values.otlp.intervalSeconds }}
  interval_s: {{ . }}
  {{- end }}
  {{- if $queue }}
  queue:
    directory: /var/lib/tokengauge/queue
    max_bytes: {{ mul .Values.otlp.queue.maxMiB 1048576 }}
  {{- end }}
{{- end }}
{{- if not .Values.kubernetes.enabled }}
kubernetes:
  enabled: false
{{- end }}
{{- with .Values.tenants.headers }}
tenant:
  headers:
    {{- toYaml . | nindent 4 }}
  key_file: /etc/tokengauge-tenants/{{ $.Values.tenants.keySecret.key }}
  metrics: {{ $.Values.tenants.metrics }}
{{- end }}
{{- $folders := include "tokengauge.sloFolders" . | fromYamlArray }}
{{- if or $folders .Values.slos.teams.enabled }}
slo:
  {{- with $folders }}
  files:
    {{- range . }}
    - {{ .path }}
    {{- end }}
  {{- end }}
  {{- if .Values.slos.teams.enabled }}
  config_maps:
    selector: {{ .Values.slos.teams.selector | quote }}
    {{- with .Values.slos.teams.namespaces }}
    namespaces:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    directory: /var/lib/tokengauge/slo-configmaps
  {{- end }}
  journal: /var/lib/tokengauge/slo.journal
{{- end }}
{{- end }}

{{/* The agent's file: what the chart says, and on top of it what `config` says. */}}
{{- define "tokengauge.config" -}}
{{- $derived := include "tokengauge.derived" . | fromYaml }}
{{- toYaml (mustMergeOverwrite $derived (deepCopy .Values.config)) }}
{{- end }}

{{/* Not empty when something is kept on the node. */}}
{{- define "tokengauge.keeps" -}}
{{- $config := include "tokengauge.config" . | fromYaml }}
{{- if or $config.slo (dig "otlp" "queue" "directory" "" $config) }}yes{{ end }}
{{- end }}

{{/* One endpoint of a PodMonitor or ServiceMonitor. */}}
{{- define "tokengauge.monitored" -}}
- port: http
  path: /metrics
  interval: {{ .monitor.interval }}
  {{- if .http.tlsSecret }}
  scheme: https
  {{- end }}
  {{- with .monitor.tlsConfig }}
  tlsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .http.tokenSecret.name }}
  authorization:
    credentials:
      name: {{ .http.tokenSecret.name }}
      key: {{ .http.tokenSecret.key }}
  {{- end }}
{{- end }}

{{- define "tokengauge.priorityClassName" -}}
{{- if .Values.priorityClass.create }}
{{- .Values.priorityClassName | default (include "tokengauge.clusterName" .) }}
{{- else }}
{{- .Values.priorityClassName }}
{{- end }}
{{- end }}

{{/*
Stops where the pods could never run, and where two values contradict each other. helm itself would report success: the API server takes the
DaemonSet and refuses its pods.
*/}}
{{- define "tokengauge.check" -}}
{{- if .Values.podSecurity.check }}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace }}
{{- $level := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" (default dict $namespace) }}
{{- if has $level (list "baseline" "restricted") }}
{{- fail (printf "\n\nThe namespace %s enforces the Pod Security level `%s`, under which the agents can never run: they need hostPID and capabilities, which only `privileged` allows.\n\n    kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged\n\nor choose another namespace. podSecurity.check=false installs all the same (e.g. where an exemption holds).\n" .Release.Namespace $level .Release.Namespace) }}
{{- end }}
{{- end }}
{{- $pcap := dig "taps" "pcap" list .Values.config }}
{{- if and $pcap (not .Values.privileged) (not (has "NET_RAW" .Values.securityContext.capabilities.add)) }}
{{- fail "\n\nconfig.taps.pcap captures packets, for which the capability NET_RAW is missing in securityContext.capabilities.add.\n" }}
{{- end }}
{{- $monitors := or .Values.prometheus.podMonitor.enabled .Values.prometheus.serviceMonitor.enabled .Values.prometheus.scrapeAnnotations }}
{{- if and $monitors (not (and .Values.http.enabled .Values.http.metrics)) }}
{{- fail "\n\nprometheus.*: the agents would be scraped, but http.enabled and http.metrics are not both true: nobody would answer.\n" }}
{{- end }}
{{- if and .Values.tenants.headers (not .Values.tenants.keySecret.name) }}
{{- fail "\n\ntenants.headers: without a key nobody is named. Make one, and name it by tenants.keySecret.name:\n\n    kubectl create secret generic tokengauge-tenants --from-literal=key=\"$(openssl rand -hex 32)\"\n" }}
{{- end }}
{{- $surge := dig "rollingUpdate" "maxSurge" 0 .Values.updateStrategy | toString }}
{{- if not (has $surge (list "0" "0%")) }}
{{- fail "\n\nupdateStrategy.rollingUpdate.maxSurge would run two agents on a node, which measure everything twice.\n" }}
{{- end }}
{{- end }}

{{- define "tokengauge.securityContext" -}}
readOnlyRootFilesystem: true
runAsUser: 0
{{- if .Values.privileged }}
privileged: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  {{- toYaml .Values.securityContext.capabilities | nindent 2 }}
{{- with .Values.securityContext.seccompProfile }}
seccompProfile:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}
{{- with .Values.securityContext.appArmorProfile }}
appArmorProfile:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
