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

{{/* The agent's file. The endpoint is not in it: it goes by the environment, where Kubernetes fills in $(HOST_IP). */}}
{{- define "tokengauge.config" -}}
{{- $config := deepCopy .Values.config }}
{{- with .Values.otlp.intervalSeconds }}
{{- $config = mustMergeOverwrite $config (dict "otlp" (dict "interval_s" .)) }}
{{- end }}
{{- toYaml $config }}
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
