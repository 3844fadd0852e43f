{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* The labels of an object. Argument: (list $ "agent"). */}}
{{- define "gpuflight.labels" -}}
{{ include "gpuflight.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* The labels that select the pods of a component. Argument: (list $ "agent"). */}}
{{- define "gpuflight.selector" -}}
app.kubernetes.io/name: gpuflight
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gpuflight.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "gpuflight.keys" -}}
{{ .Values.keys.existingSecret | default (printf "%s-keys" .Release.Name) }}
{{- end }}

{{/* Whether the agent needs user 0. "" is false. */}}
{{- define "gpuflight.root" -}}
{{ if or .Values.agent.pods .Values.agent.cuda }}true{{ end }}
{{- end }}

{{/* What all containers have. The capabilities of eBPF are added by the caller. */}}
{{- define "gpuflight.securityContext" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The environment that both programs have. */}}
{{- define "gpuflight.env" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
# The probes and Prometheus reach these two.
- {name: GPUFLIGHT_HEALTH, value: ":13133"}
- {name: GPUFLIGHT_METRICS_HOST, value: "$(POD_IP)"}
{{- end }}

{{- define "gpuflight.probes" -}}
readinessProbe:
  httpGet: {path: /, port: health}
livenessProbe:
  httpGet: {path: /, port: health}
  initialDelaySeconds: 15
  periodSeconds: 20
{{- end }}
