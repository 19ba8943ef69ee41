{{/* The name of all objects: the release's, with the chart's in it. A StatefulSet's may have 52 characters. */}}
{{- define "queuey.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{/* What selects the pods of a part: (list $ "service"). */}}
{{- define "queuey.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* The labels of an object of a part. */}}
{{- define "queuey.labels" -}}
{{- $root := index . 0 -}}
{{ include "queuey.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "queuey.image" -}}
{{- $missing := "image.repository is missing: build the image (deploy/docker/Dockerfile), push it to where your cluster finds it, and name it: --set image.repository=HOST/queuey" -}}
{{- printf "%s:%s" (required $missing .Values.image.repository) (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end }}

{{/* "yes", or nothing where the store is SQLite. */}}
{{- define "queuey.cassandra" -}}
{{- if hasPrefix "cassandra://" (.Values.settings.store | default "sqlite") }}yes{{ end -}}
{{- end }}

{{- define "queuey.scheme" -}}
{{- if .Values.settings.tls_cert }}https{{ else }}http{{ end -}}
{{- end }}

{{/* Refuses values that contradict each other, which the schema cannot say. */}}
{{- define "queuey.check" -}}
{{- range $name, $instead := dict "host" "the pod listens on all of its addresses" "port" "the port of the Service is service.port" "data" "the volume is described by storage" "profile" "it is on the volume" -}}
{{- if hasKey $.Values.settings $name }}{{ fail (printf "settings.%s is set by the chart: %s. Remove it from your values." $name $instead) }}{{ end -}}
{{- end -}}
{{- if and (not (include "queuey.cassandra" .)) (gt (int .Values.replicas) 1) -}}
{{- fail (printf "replicas is %d, but the store is SQLite, a file that one pod has to itself. Set replicas to 1, or settings.store to cassandra://HOST,HOST/KEYSPACE." (int .Values.replicas)) -}}
{{- end -}}
{{- if and .Values.monitor.enabled (not (dig "metrics" "publish" true .Values.settings)) -}}
{{- fail "monitor.enabled is true, but settings.metrics.publish turns the metrics off. Change one of them." -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host is missing: name the host under which clients reach the service, or set ingress.enabled to false." -}}
{{- end -}}
{{- end }}
