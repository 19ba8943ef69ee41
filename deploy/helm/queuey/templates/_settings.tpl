{{/* A value as TOML. Numbers of values are floats where Helm has read them so: whole ones are written as such. */}}
{{- define "queuey.toml.value" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }},{{ end }} {{ toJson $key }} = {{ include "queuey.toml.value" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $i, $one := . }}{{ if $i }}, {{ end }}{{ include "queuey.toml.value" $one }}{{ end }}]
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{/* A map as a settings file. */}}
{{- define "queuey.toml" -}}
{{- range $name := keys . | sortAlpha }}
{{ $name }} = {{ include "queuey.toml.value" (get $ $name) }}
{{- end }}
{{- end }}

{{/* The settings file of the service. */}}
{{- define "queuey.settings" -}}
{{- $own := dict "host" "0.0.0.0" "port" 5000 -}}
{{- if not (include "queuey.cassandra" .) -}}
{{- $own = merge $own (dict "data" "/var/lib/queuey/data" "profile" "/var/lib/queuey/profile.toml") -}}
{{- end -}}
{{- include "queuey.toml" (mergeOverwrite (deepCopy .Values.settings) $own) | trim -}}
{{- end }}

{{/* The settings file of a worker: (list $ worker). */}}
{{- define "queuey.worker.settings" -}}
{{- $root := index . 0 -}}
{{- $url := printf "%s://%s:%d" (include "queuey.scheme" $root) (include "queuey.name" $root) (int $root.Values.service.port) -}}
{{- $given := merge (deepCopy (index . 1).settings) (dict "url" $url "log" "json") -}}
{{- include "queuey.toml" (mergeOverwrite $given (dict "metrics" "0.0.0.0:9400")) | trim -}}
{{- end }}
