{{- /*
SPDX-License-Identifier: Apache-2.0
What the templates of the server and of the client share. Each takes (list . "server") or (list . "client").
*/ -}}

{{- /* The name of all objects. A StatefulSet's may have 52 characters, as pods have a longer one. */ -}}
{{- define "tributary.name" -}}
{{ (index . 0).Release.Name | trunc 45 | trimSuffix "-" }}-{{ index . 1 }}
{{- end }}

{{- /* What selectors look for. Kubernetes refuses to change it later. */ -}}
{{- define "tributary.selector" -}}
app.kubernetes.io/name: tributary-{{ index . 1 }}, app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
{{- end }}

{{- define "tributary.labels" -}}
{{ include "tributary.selector" . }}, app.kubernetes.io/part-of: tributary
{{- end }}

{{- /* The name of the secret with the token. */ -}}
{{- define "tributary.secret" -}}
{{ (index (index . 0).Values (index . 1)).existingSecret | default (include "tributary.name" .) }}
{{- end }}

{{- /* Lines of a TOML file, whose strings, numbers and lists are those of JSON. */ -}}
{{- define "tributary.flags" -}}
{{- range $name, $value := (index (index . 0).Values (index . 1)).flags }}
{{ $name }} = {{ toRawJson $value }}
{{- end }}
{{- end }}

{{- define "tributary.image" -}}
{{- $image := (index (index . 0).Values (index . 1)).image -}}
image: {{ printf "%s:%s" $image.repository (default (index . 0).Chart.AppVersion $image.tag) | quote }}
{{- with $image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* Of a pod: it has no rights, and the time that a clean end may take. */ -}}
{{- define "tributary.pod" -}}
serviceAccountName: {{ include "tributary.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 90  # limits::stop_max and a margin.
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with (index . 0).Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $own := index (index . 0).Values (index . 1) }}
{{- with $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tributary.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The volume with the state. It outlives the release. */ -}}
{{- define "tributary.claim" -}}
{{- $part := index . 1 -}}
{{- $persistence := (index (index . 0).Values $part).persistence -}}
{{- if not $persistence.enabled }}
{{- printf "%s.persistence.enabled is false: without a volume each restart would be a new %s with a new identity. Leave it true; a small persistence.size is enough to try things" $part $part | fail }}
{{- end -}}
persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
volumeClaimTemplates:
  - metadata:
      name: state
    spec:
      # SQLite needs a local disk or a block device, not a file share.
      accessModes: [ReadWriteOnce]
      {{- with $persistence.storageClass }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources:
        requests: {storage: {{ $persistence.size }}}
{{- end }}
