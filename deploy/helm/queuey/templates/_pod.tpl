{{/* What every pod of the chart may do: nothing but compute and speak to others. */}}
{{- define "queuey.pod.security" -}}
automountServiceAccountToken: false
# For a Service called queuey, Kubernetes would set QUEUEY_PORT and others: they would be read as settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "queuey.container.security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Where the settings file, and the files that it names, are mounted: names of Secrets. */}}
{{- define "queuey.mounts" -}}
- {name: settings, mountPath: /etc/queuey/queuey.toml, subPath: queuey.toml, readOnly: true}
{{- range . }}
- {name: {{ printf "secret-%s" . | quote }}, mountPath: {{ printf "/etc/queuey/secrets/%s" . | quote }}, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* Their volumes: (list name-of-the-ConfigMap secrets). */}}
{{- define "queuey.volumes" -}}
- name: settings
  configMap: {name: {{ index . 0 }}}
{{- range index . 1 }}
- name: {{ printf "secret-%s" . | quote }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{/* Where pods run. */}}
{{- define "queuey.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The spec of a pod of the service. */}}
{{- define "queuey.service.pod" -}}
{{- $scheme := upper (include "queuey.scheme" .) -}}
{{- $sqlite := not (include "queuey.cassandra" .) -}}
{{ include "queuey.pod.security" . }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
# drainSeconds, then shutdown_timeout, then 5 s until what still runs is killed; 5 s more than that.
terminationGracePeriodSeconds: {{ add (int .Values.drainSeconds) (int (ceil (.Values.settings.shutdown_timeout | default 10))) 10 }}
{{- with include "queuey.placement" . | trim }}
{{ . }}
{{- end }}
{{- if not $sqlite }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "queuey.selector" (list $ "service") | nindent 8 }}
  {{- end }}
{{- end }}
containers:
  - name: queuey
    image: {{ include "queuey.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [serve]
    env:
      # Commands that run in the container find the settings, too.
      - {name: QUEUEY_CONFIG, value: /etc/queuey/queuey.toml}
    ports:
      - {name: http, containerPort: 5000}
    # Load balancers stop sending requests before the service stops taking them.
    lifecycle:
      preStop:
        exec: {command: [sleep, {{ .Values.drainSeconds | quote }}]}
    startupProbe:
      # Cassandra: a pod that cannot use its store, such as one with a wrong password, ends a rollout.
      httpGet: {path: {{ ternary "/__lbheartbeat__" "/__heartbeat__" $sqlite }}, port: http, scheme: {{ $scheme }}}
      periodSeconds: 5
      timeoutSeconds: 10
      failureThreshold: 60
    # Is this process well? A store that is away is the same for all pods, and no restart would mend it.
    readinessProbe:
      httpGet: {path: /__lbheartbeat__, port: http, scheme: {{ $scheme }}}
      periodSeconds: 5
      timeoutSeconds: 5
    livenessProbe:
      httpGet: {path: /__lbheartbeat__, port: http, scheme: {{ $scheme }}}
      periodSeconds: 10
      timeoutSeconds: 10
      failureThreshold: 6
    {{- with .Values.resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- include "queuey.container.security" . | nindent 4 }}
    volumeMounts:
      {{- include "queuey.mounts" .Values.secrets | nindent 6 }}
      - {name: data, mountPath: /var/lib/queuey}
volumes:
  {{- include "queuey.volumes" (list (include "queuey.name" .) .Values.secrets) | nindent 2 }}
  {{- if not $sqlite }}
  - name: data
    emptyDir: {}
  {{- end }}
{{- end }}
