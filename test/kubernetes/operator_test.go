// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	// The module has the CRDs of the Operator.
	_ "github.com/open-telemetry/opentelemetry-operator/pkg/constants"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/gpuflight/gpuflight/internal/testing/testsink/process"
)

const operatorDir = "../../examples/operator"

func example(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(operatorDir, name))
	require.NoError(t, err)
	return string(text)
}

// inject applies the policy of inject.yaml to a pod as the API server does. It returns nil if the
// policy does not match.
func inject(t *testing.T, pod *core.Pod) *core.Pod {
	t.Helper()
	objects := decode(t, example(t, "inject.yaml"))
	require.Len(t, objects, 2)
	policy := objects[0].(*admissionregistration.MutatingAdmissionPolicy)
	binding := objects[1].(*admissionregistration.MutatingAdmissionPolicyBinding)
	require.Equal(t, policy.Name, binding.Spec.PolicyName)

	selector, err := metav1.LabelSelectorAsSelector(policy.Spec.MatchConstraints.ObjectSelector)
	require.NoError(t, err)
	labels := make(labelSet, len(pod.Labels))
	for k, v := range pod.Labels {
		labels[k] = v
	}
	if !selector.Matches(labels) {
		return nil
	}

	options := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	require.NoError(t, err)
	var variables []plugincel.NamedExpressionAccessor
	for _, v := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(variables, options, environment.StoredExpressions)

	gvk := core.SchemeGroupVersion.WithKind("Pod")
	pod = pod.DeepCopy()
	pod.SetGroupVersionKind(gvk)
	gvr := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	attributes := &admission.VersionedAttributes{
		Attributes:         admission.NewAttributesRecord(pod, nil, gvk, pod.Namespace, pod.Name, gvr, "", admission.Create, &metav1.CreateOptions{}, false, nil),
		VersionedKind:      gvk,
		VersionedObject:    admission.NewLazyObject(pod),
		VersionedOldObject: admission.NewLazyObject(nil),
	}
	var conditions []plugincel.ExpressionAccessor
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	matcher := matchconditions.NewMatcher(compiler.CompileCondition(conditions, options, environment.StoredExpressions),
		policy.Spec.FailurePolicy, "policy", "validate", policy.Name)
	ctx := compiler.CreateContext(t.Context())
	match := matcher.Match(ctx, attributes, nil, nil)
	require.NoError(t, match.Error)
	if !match.Matches {
		return nil
	}

	options.HasPatchTypes = true
	require.Len(t, policy.Spec.Mutations, 1)
	patcher := patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(
		&patch.JSONPatchCondition{Expression: policy.Spec.Mutations[0].JSONPatch.Expression}, options, environment.StoredExpressions))
	patched, err := patcher.Patch(ctx, patch.Request{
		MatchedResource:     gvr,
		VersionedAttributes: attributes,
		ObjectInterfaces:    admission.NewObjectInterfacesFromScheme(scheme.Scheme),
	}, celconfig.RuntimeCELCostBudget)
	require.NoError(t, err)
	return patched.(*core.Pod)
}

type labelSet map[string]string

func (l labelSet) Has(label string) bool              { _, ok := l[label]; return ok }
func (l labelSet) Get(label string) string            { return l[label] }
func (l labelSet) Lookup(label string) (string, bool) { v, ok := l[label]; return v, ok }

func samplePod(t *testing.T) *core.Pod {
	t.Helper()
	objects := decode(t, example(t, "pod.yaml"))
	require.Len(t, objects, 1)
	return objects[0].(*core.Pod)
}

// names of the variables of a container, in their order.
func variables(c core.Container) (out []string) {
	for _, e := range c.Env {
		out = append(out, e.Name)
	}
	return out
}

func TestInject_Pod(t *testing.T) {
	pod := samplePod(t)
	pod.Spec.Containers[0].Env = []core.EnvVar{{Name: "MODEL", Value: "llama"}}
	pod.Spec.InitContainers = []core.Container{{Name: "download", Image: "registry.example/download:1"}}
	pod.Spec.Volumes = []core.Volume{{Name: "model", VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []core.VolumeMount{{Name: "model", MountPath: "/model"}}
	pod.Spec.Containers = append(pod.Spec.Containers,
		core.Container{Name: "other", Image: "registry.example/other:1", Env: []core.EnvVar{
			{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: "http://mine:4318"}, {Name: "OTEL_RESOURCE_ATTRIBUTES", Value: "team=a"},
		}},
		core.Container{Name: "profiled", Image: "registry.example/profiled:1", Env: []core.EnvVar{{Name: "CUDA_INJECTION64_PATH", Value: "/nsys.so"}}},
	)
	got := inject(t, pod)
	require.NotNil(t, got)

	require.Len(t, got.Spec.Volumes, 2)
	assert.Equal(t, pod.Spec.Volumes[0], got.Spec.Volumes[0])
	assert.Equal(t, "100Mi", got.Spec.Volumes[1].EmptyDir.SizeLimit.String())
	require.Len(t, got.Spec.InitContainers, 2)
	assert.Equal(t, pod.Spec.InitContainers[0], got.Spec.InitContainers[1])
	copier := got.Spec.InitContainers[0]
	assert.True(t, *copier.SecurityContext.RunAsNonRoot)
	assert.True(t, *copier.SecurityContext.ReadOnlyRootFilesystem)
	assert.False(t, *copier.SecurityContext.AllowPrivilegeEscalation)
	assert.Equal(t, []core.Capability{"ALL"}, copier.SecurityContext.Capabilities.Drop)
	assert.Equal(t, core.SeccompProfileTypeRuntimeDefault, copier.SecurityContext.SeccompProfile.Type)
	assert.Equal(t, "64Mi", copier.Resources.Limits.Memory().String())

	require.Len(t, got.Spec.Containers, 3)
	server, other, profiled := got.Spec.Containers[0], got.Spec.Containers[1], got.Spec.Containers[2]
	// A reference needs its variable before it.
	assert.Equal(t, []string{
		"MODEL", "CUDA_INJECTION64_PATH", "GPUFLIGHT_NAMESPACE", "GPUFLIGHT_POD", "GPUFLIGHT_NODE", "OTEL_RESOURCE_ATTRIBUTES",
		"GPUFLIGHT_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS",
	}, variables(server))
	assert.Equal(t, "registry.example/inference:1", server.Image)
	assert.Equal(t, "1", server.Resources.Limits.Name("nvidia.com/gpu", "").String())
	for _, e := range server.Env {
		if e.Name == "GPUFLIGHT_KEY" {
			assert.True(t, *e.ValueFrom.SecretKeyRef.Optional, "a missing Secret must not keep a pod from starting")
		}
	}
	for _, c := range []core.Container{server, other} {
		assert.Equal(t, core.VolumeMount{Name: "gpuflight", MountPath: "/opt/gpuflight", ReadOnly: true}, c.VolumeMounts[len(c.VolumeMounts)-1])
	}
	assert.Equal(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_RESOURCE_ATTRIBUTES", "CUDA_INJECTION64_PATH"}, variables(other))
	assert.Equal(t, "http://mine:4318", other.Env[0].Value)
	assert.Equal(t, pod.Spec.Containers[2], profiled, "a container with another injection library stays as it is")
}

func TestInject_NoMatch(t *testing.T) {
	pod := samplePod(t)
	once := inject(t, pod)
	require.NotNil(t, once)
	assert.Nil(t, inject(t, once), "a second time")
	pod.Labels = nil
	assert.Nil(t, inject(t, pod), "no label")
}

// TestOperator_Collector checks the resource against the Operator's CRD and its configuration with the
// Collector.
func TestOperator_Collector(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/open-telemetry/opentelemetry-operator")
	list.Env = append(os.Environ(), "GOWORK=off")
	dir, err := list.Output()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/bases/opentelemetry.io_opentelemetrycollectors.yaml"))
	require.NoError(t, err)
	var v1 apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.Unmarshal(text, &v1))
	var crd apiextensions.CustomResourceDefinition
	require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd, nil))

	var object map[string]any
	require.NoError(t, yaml.UnmarshalStrict([]byte(example(t, "collector.yaml")), &object))
	version := crd.Spec.Versions[slices.IndexFunc(crd.Spec.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool {
		return "opentelemetry.io/"+v.Name == object["apiVersion"]
	})]
	validator, _, err := validation.NewSchemaValidator(version.Schema.OpenAPIV3Schema)
	require.NoError(t, err)
	assert.Empty(t, validation.ValidateCustomResource(field.NewPath(""), object, validator))
	structural, err := structuralschema.NewStructural(version.Schema.OpenAPIV3Schema)
	require.NoError(t, err)
	unknown := pruning.PruneWithOptions(runtime.DeepCopyJSON(object), structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	assert.Empty(t, unknown, "unknown fields")

	binary := process.Collector.Find(t)
	config, err := yaml.Marshal(object["spec"].(map[string]any)["config"])
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "collector.yaml")
	require.NoError(t, os.WriteFile(file, config, 0o600))
	cmd := exec.CommandContext(t.Context(), binary, "validate", "--config", file)
	cmd.Env = []string{"POD_IP=127.0.0.1", "GPUFLIGHT_HOST=node", "GPUFLIGHT_KEY=x"}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
