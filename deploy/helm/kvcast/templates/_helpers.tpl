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

{{/* Settings of agents by group of nodes, as JSON: those of `agent`, and upon them the group's own. Without groups one
group, which has no name. */}}
{{- define "kvcast.groups" -}}
{{- $groups := dict -}}
{{- range $group, $own := .Values.agentGroups -}}
{{- $_ := set $groups $group (mergeOverwrite (deepCopy $.Values.agent) (deepCopy $own)) -}}
{{- end -}}
{{- if not $groups -}}
{{- $_ := set $groups "" .Values.agent -}}
{{- end -}}
{{- toJson $groups -}}
{{- end -}}

{{/* What follows the name of a group's objects. */}}
{{- define "kvcast.groupSuffix" -}}
{{- if . }}-{{ . }}{{ end -}}
{{- end -}}

{{/* agent.yaml of a group; (dict "root" $ "agent" SETTINGS). Numbers come from JSON: int64 keeps their digits. */}}
{{- define "kvcast.agentConfig" -}}
{{- $agent := .agent -}}
{{- $pool := dict "size" (int64 $agent.poolBytes) "huge_pages" $agent.hugePages -}}
{{- if .root.Values.keeper.enabled -}}
{{- $_ := set $pool "keeper" "/run/kvcast-keeper/keeper.sock" -}}
{{- end -}}
{{- $config := dict
      "data" (dict "interface" $agent.interface "segment_bytes" (int64 .root.Values.agent.segmentBytes))
      "pool" $pool
      "controller" (dict "address" (splitList "," (include "kvcast.controllers" .root)))
      "api" (dict "socket" "/run/kvcast/agent.sock")
      "http" (dict "address" "0.0.0.0" "port" 9475) -}}
{{- if $agent.disk.hostPath -}}
{{- $_ := set $config "disk" (dict "path" "/var/lib/kvcast-disk" "size" (int64 $agent.disk.sizeBytes)) -}}
{{- end -}}
{{- if $agent.cold -}}
{{- $_ := set $config "cold" $agent.cold -}}
{{- end -}}
{{- $config = mergeOverwrite $config (fromYaml (include "kvcast.security" .root)) (deepCopy $agent.extraConfig) -}}
{{- toYaml $config -}}
{{- end -}}

{{/* controller.yaml. */}}
{{- define "kvcast.controllerConfig" -}}
{{- $nodes := dict -}}
{{- $ports := list -}}
{{- range $name, $port := .Values.nodes -}}
{{- $_ := set $nodes $name (dict "port" (int $port)) -}}
{{- $ports = append $ports (int $port) -}}
{{- end -}}
{{- $switch := dict "target" .Values.switch.target -}}
{{- if ne .Values.switch.target "none" -}}
{{- $_ := set $switch "address" .Values.switch.address -}}
{{- if $ports -}}
{{- $_ := set $switch "flood_ports" $ports -}}
{{- end -}}
{{- end -}}
{{- $lease := printf "%s-controller" (include "kvcast.name" .) -}}
{{- $config := dict
      "listen" "0.0.0.0:4800"
      "metrics" "0.0.0.0:9470"
      "election" (dict "by" "kubernetes" "kubernetes" (dict "lease" $lease))
      "nodes" $nodes
      "switch" $switch -}}
{{- if eq .Values.switch.target "none" -}}
{{- $_ := set $config "fabric" (dict "segment_bytes" (int64 .Values.agent.segmentBytes)) -}}
{{- end -}}
{{- $config = mergeOverwrite $config (fromYaml (include "kvcast.security" .)) (deepCopy .Values.controller.extraConfig) -}}
{{- toYaml $config -}}
{{- end -}}
