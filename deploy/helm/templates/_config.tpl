{{- /* The options of the gateway that this chart needs. */ -}}
{{- define "oncegate.options" -}}
admin:
  host: 0.0.0.0
  token: "${ONCEGATE_ADMIN_TOKEN}"
  tokens: [{ name: prometheus, token: "${ONCEGATE_METRICS_TOKEN}", only: metrics }]
upstream:
  url: {{ .Values.upstream | quote }}
auth:
  keys: { source: upstream }
store:
  kind: {{ .Values.store }}
{{- if eq .Values.store "redis" }}
  url: "${REDIS_URL}"
  # If it has replicas: durability: { replicas: N }, the number of all of them.
{{- else if eq .Values.store "postgres" }}
  url: "${DATABASE_URL}"
{{- else }}
  path: /data
{{- end }}
  # With redis or postgres the volume ends with the pod. With sqlite it is that of the records: a restored snapshot of it is not noticed, and forgets
  # keys. Begin then with "After a backup was restored" in docs/runbook.
  identityFile: /data/store-identity.json
{{- if ne .Values.store "sqlite" }}
shutdown:
  # Services and the ingress need some seconds until they send nothing more to a pod that is to stop.
  delayMs: 5s
{{- end }}
{{- end -}}

{{- /* The file gateway.yaml. */ -}}
{{- define "oncegate.config" -}}
{{- mergeOverwrite (fromYaml (include "oncegate.options" .)) .Values.config | toYaml -}}
{{- end -}}

{{- /* The port of a section of that file: listen or admin. */ -}}
{{- define "oncegate.port" -}}
{{- $config := fromYaml (include "oncegate.config" .root) -}}
{{- dig .section "port" .default $config -}}
{{- end -}}
{{- define "oncegate.listenPort" -}}{{ include "oncegate.port" (dict "root" . "section" "listen" "default" 8080) }}{{- end -}}
{{- define "oncegate.adminPort" -}}{{ include "oncegate.port" (dict "root" . "section" "admin" "default" 8081) }}{{- end -}}

{{- define "oncegate.selector" -}}
app.kubernetes.io/name: oncegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "oncegate.labels" -}}
{{ include "oncegate.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
