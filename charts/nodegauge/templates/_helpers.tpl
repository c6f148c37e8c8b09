{{/* The chart's name in labels. */}}
{{- define "nodegauge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* Prefix of object names: short enough that the longest suffix still fits into 63 characters. */}}
{{- define "nodegauge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Namespace of all namespaced objects. */}}
{{- define "nodegauge.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{/* Labels that select the operator's pods. A Deployment's selector cannot change after the install. */}}
{{- define "nodegauge.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nodegauge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels that select the BMC reader's pod. */}}
{{- define "nodegauge.bmcSelectorLabels" -}}
app.kubernetes.io/name: {{ include "nodegauge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: bmc
{{- end }}

{{/* Labels of every object. Call with (dict "root" $ "component" "operator"). */}}
{{- define "nodegauge.labels" -}}
{{- with .root -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "nodegauge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: nodegauge
{{- end }}
app.kubernetes.io/component: {{ .component }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
An image reference, or a failure: no image is used whose registry nobody named. A name holds its registry if its first
part has a dot or a colon, or is localhost. Call with (dict "root" $ "of" "operator" "image" .Values.operator.image).
*/}}
{{- define "nodegauge.image" -}}
{{- if eq .image.tag "latest" -}}
{{- fail (printf "%s.image.tag must not be latest, because it names no version: set a version or a digest" .of) -}}
{{- end -}}
{{- $hosted := "^(localhost|[^/]*[.:][^/]*)/" -}}
{{- $name := .image.repository -}}
{{- if .image.registry -}}
{{- $name = printf "%s/%s" .image.registry $name -}}
{{- else if and .root.Values.image.registry (not (regexMatch $hosted $name)) -}}
{{- $name = printf "%s/%s" .root.Values.image.registry $name -}}
{{- end -}}
{{- if not (regexMatch $hosted $name) -}}
{{- $way := ternary ", or nccl.enabled=false to do without the NCCL probe" "" (eq .of "nccl") -}}
{{- fail (printf "%s.image is %s, which names no registry: nodes would pull it from their default registry, whoever published it there; set image.registry to the registry that you pushed nodegauge's images to, such as registry.example.com (%s.image.registry for this image alone; localhost for images that are on the nodes already)%s" .of $name .of $way) -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end }}

{{- define "nodegauge.serviceAccountName" -}}
{{- if not (or .Values.operator.serviceAccount.create .Values.operator.serviceAccount.name) -}}
{{- fail "operator.serviceAccount.name is required when operator.serviceAccount.create is false: set it to an existing account" -}}
{{- end -}}
{{- default (include "nodegauge.fullname" .) .Values.operator.serviceAccount.name -}}
{{- end }}

{{- define "nodegauge.probeServiceAccountName" -}}
{{- if not (or .Values.probe.serviceAccount.create .Values.probe.serviceAccount.name) -}}
{{- fail "probe.serviceAccount.name is required when probe.serviceAccount.create is false: set it to an existing account" -}}
{{- end -}}
{{- default (printf "%s-probe" (include "nodegauge.fullname" .)) .Values.probe.serviceAccount.name -}}
{{- end }}

{{/*
Name of a PriorityClass; empty if the chart creates none and none is named: pods then have the cluster's default. Call
with (dict "root" $ "class" .Values.probe.priorityClass "for" "probe").
*/}}
{{- define "nodegauge.priorityClassName" -}}
{{- if .class.create -}}
{{- default (printf "%s-%s" (include "nodegauge.fullname" .root) .for) .class.name -}}
{{- else -}}
{{- .class.name -}}
{{- end -}}
{{- end }}

{{/*
A duration within the operator's bounds, or a failure that names the value. Call with (dict "of" "operator.sweepInterval"
"value" .Values.operator.sweepInterval "low" 0.1 "high" 300); the bounds are seconds, as in the operator's settings.py.
*/}}
{{- define "nodegauge.duration" -}}
{{- $factors := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h)" .value -1 -}}
{{- $total = addf $total (mulf (regexFind "^[0-9]+" . | float64) (get $factors (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- if or (lt $total (float64 .low)) (gt $total (float64 .high)) -}}
{{- fail (printf "%s is %s: set it to %vs to %vs" .of .value .low .high) -}}
{{- end -}}
{{- .value -}}
{{- end }}

{{/* Pod half of what the Pod Security level "restricted" requires; the container half is below. */}}
{{- define "nodegauge.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "nodegauge.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
Metadata of pods that run the operator's image. Call with (dict "root" $ "component" "operator"). Only the operator
may have a sidecar: with one, a hook's pod would never complete.
*/}}
{{- define "nodegauge.podMetadata" -}}
{{- $labels := dict }}
{{- $annotations := dict }}
{{- if ne .component "operator" }}
{{- $without := (.root.Files.Get "files/admission.yaml" | fromYaml).noSidecar }}
{{- $labels = deepCopy $without.labels }}
{{- $annotations = deepCopy $without.annotations }}
{{- end }}
labels:
  {{- range $key, $value := merge $labels .root.Values.operator.podLabels }}
  {{- if not (hasKey $.root.Values.commonLabels $key) }}
  {{ $key }}: {{ $value | quote }}
  {{- end }}
  {{- end }}
  {{- include "nodegauge.labels" . | nindent 2 }}
{{- with merge $annotations .root.Values.operator.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Keys that policies may name in spec.labels.interconnectKey, as a JSON list. */}}
{{- define "nodegauge.interconnectKeys" -}}
{{- $ofPolicy := get (get (.Values.policy.spec | default dict) "labels" | default dict) "interconnectKey" -}}
{{- append (.Values.admissionPolicies.interconnectKeys | default list) $ofPolicy | compact | uniq | toJson -}}
{{- end }}

{{/* Names of the pull secrets as a JSON list: the values have names, or objects as Kubernetes writes them. */}}
{{- define "nodegauge.pullSecrets" -}}
{{- $names := list -}}
{{- range .Values.imagePullSecrets -}}
{{- if kindIs "map" . -}}{{- $names = append $names .name -}}{{- else -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* Priority, pull secrets and placement of pods that run the operator's image. */}}
{{- define "nodegauge.placement" -}}
{{- with .Values.operator.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with include "nodegauge.pullSecrets" . | fromJsonArray }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  # Our own taints, whatever their effect: NoExecute must not evict who would remove it.
  {{- range list "throttled" "unhealthy" "unvalidated" }}
  - {key: nodegauge.dev/{{ . }}, operator: Exists}
  {{- end }}
  {{- range dig "taints" "keys" dict (.Values.policy.spec | default dict) }}
  - {key: {{ . }}, operator: Exists}
  {{- end }}
  {{- with .Values.operator.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.operator.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The default policy's spec: that of the values, plus a node selector if they have none. */}}
{{- define "nodegauge.policySpec" -}}
{{- if not (hasKey (.Values.policy.spec | default dict) "nodeSelector") }}
nodeSelector:
  matchLabels:
    nvidia.com/gpu.present: "true"
{{- end }}
{{- with .Values.policy.spec }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
The whole default policy, without Helm's ownership annotations. Our hooks delete it on uninstall. So Helm must neither
delete it itself, which fails once somebody has removed the CRDs, nor list it as kept: any value of its annotation but
keep does that.
*/}}
{{- define "nodegauge.policy" -}}
apiVersion: nodegauge.dev/v1alpha1
kind: GPUValidationPolicy
metadata:
  name: {{ .Values.policy.name }}
  labels:
    {{- include "nodegauge.labels" (dict "root" . "component" "policy") | nindent 4 }}
  annotations:
    helm.sh/resource-policy: deleted-by-hook
spec:
  {{- include "nodegauge.policySpec" . | nindent 2 }}
{{- end }}

{{/* Not empty if the API server served policies before Helm wrote anything. */}}
{{- define "nodegauge.policyKnown" -}}
{{- if .Capabilities.APIVersions.Has "nodegauge.dev/v1alpha1/GPUValidationPolicy" }}known{{ end -}}
{{- end }}

{{/* Escapes text for a container's arguments and environment, in which the kubelet expands $(NAME) and $$. */}}
{{- define "nodegauge.literal" -}}
{{- replace "$" "$$" . -}}
{{- end }}

{{/* A list or map as JSON for a container's environment; empty if it is empty. */}}
{{- define "nodegauge.json" -}}
{{- if . -}}{{- include "nodegauge.literal" (toJson .) | quote -}}{{- else -}}""{{- end -}}
{{- end }}

{{/* Annotations of the clean-up hook's objects; the argument is the weight. Helm deletes them when the hook succeeds. */}}
{{- define "nodegauge.cleanupHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Annotations of the objects that create the first policy; the argument is the weight. */}}
{{- define "nodegauge.policyHook" -}}
helm.sh/hook: post-install,post-upgrade,pre-rollback
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* The user name of a service account in the chart's namespace. Call with (dict "root" $ "name" "a-name"). */}}
{{- define "nodegauge.user" -}}
system:serviceaccount:{{ include "nodegauge.namespace" .root }}:{{ .name }}
{{- end }}

{{/* The user names that may change nodes, as a CEL list. */}}
{{- define "nodegauge.nodeWriters" -}}
{{- $operator := include "nodegauge.user" (dict "root" . "name" (include "nodegauge.serviceAccountName" .)) -}}
{{- $cleanup := include "nodegauge.user" (dict "root" . "name" (printf "%s-cleanup" (include "nodegauge.fullname" .))) -}}
{{- toJson (list $operator $cleanup) -}}
{{- end }}

{{/* A binding of an admission policy to the whole cluster. Call with (dict "root" $ "name" "a-name"). */}}
{{- define "nodegauge.admissionBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "nodegauge.labels" (dict "root" .root "component" "admission") | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny, Audit]
{{- end }}

{{/*
Values that `helm upgrade --reuse-values` lacks if the installed chart is older than they: how probes reach the driver, its
folder on hosts, and what runs give way to, joined by commas (empty: they do not).
*/}}
{{- define "nodegauge.driverAccess" -}}
{{- .Values.driverAccess | default "Auto" -}}
{{- end }}

{{- define "nodegauge.driverFolder" -}}
{{- get (.Values.hostDriver | default dict) "folder" | default "/home/kubernetes/bin/nvidia/lib64" -}}
{{- end }}

{{- define "nodegauge.giveWayTo" -}}
{{- $give := .Values.giveWay | default dict -}}
{{- if dig "enabled" true $give -}}
{{- join "," (get $give "resources" | default (list "nvidia.com/gpu" "gpu.nvidia.com" "mig.nvidia.com" "vfio.gpu.nvidia.com")) -}}
{{- end -}}
{{- end }}
