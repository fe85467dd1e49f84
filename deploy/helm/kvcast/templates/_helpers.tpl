{{- define "kvcast.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}

{{- define "kvcast.labels" -}}
app.kubernetes.io/name: kvcast
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{/* HOST:PORT of every controller, as agents and operators name them. */}}
{{- define "kvcast.controllers" -}}
{{- $root := . -}}
{{- range $index := until (int .Values.controller.replicas) -}}
{{- if $index }},{{ end -}}
{{ include "kvcast.name" $root }}-controller-{{ $index }}.{{ include "kvcast.name" $root }}-controller.{{ $root.Release.Namespace }}.svc:4800
{{- end -}}
{{- end -}}

{{/* The section `tls` of a daemon's configuration, or what stands there instead. */}}
{{- define "kvcast.security" -}}
{{- if .Values.tls.enabled -}}
tls: {cert: /etc/kvcast-tls/tls.crt, key: /etc/kvcast-tls/tls.key, ca: /etc/kvcast-tls/ca.crt}
{{- else if .Values.insecure -}}
insecure: true
{{- else -}}
{{- fail "either tls.enabled or insecure must be true" -}}
{{- end -}}
{{- end -}}

{{/* Of every container but the switch's. */}}
{{- define "kvcast.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "kvcast.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
