// The DRA driver of the testbed: what NVIDIA's k8s-dra-driver-gpu does for a kubelet, for simulated GPUs.
// It publishes the devices of its settings as ResourceSlices, and prepares a claim by a CDI spec with the
// settings' mounts and variables.  Nothing else reaches a container: no claim, no driver.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

const kind = "k8s.gpu.nvidia.com/claim"

// settings are read from the file that the first argument names; every field must be there.
type settings struct {
	Driver     string               `json:"driver"`
	Node       string               `json:"node"`
	Kubeconfig string               `json:"kubeconfig"`
	CDI        string               `json:"cdi"` // folder of the CDI specs
	Devices    []resourceapi.Device `json:"devices"`
	Mounts     map[string]string    `json:"mounts"` // place in the container: place on the node
	Nodes      map[string]string    `json:"nodes"`  // device nodes, likewise
	Env        map[string]string    `json:"env"`
}

type plugin struct{ settings }

func (p *plugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	result := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		result[claim.UID] = p.prepare(claim)
	}
	return result, nil
}

// prepare may be asked again for a claim: it then writes the same file.
func (p *plugin) prepare(claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	var result kubeletplugin.PrepareResult
	id := kind + "=" + string(claim.UID)
	for _, one := range claim.Status.Allocation.Devices.Results {
		if one.Driver == p.Driver {
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests: []string{one.Request}, PoolName: one.Pool, DeviceName: one.Device,
				CDIDeviceIDs: []string{id},
			})
		}
	}
	result.Err = p.write(claim.UID)
	return result
}

func (p *plugin) write(uid types.UID) error {
	// As NVIDIA's driver: its container runtime, where it is the default, must not add devices once more.
	env, mounts, nodes := []string{"NVIDIA_VISIBLE_DEVICES=void"}, []any{}, []any{}
	for name, value := range p.Env {
		env = append(env, name+"="+value)
	}
	for inside, outside := range p.Mounts {
		options := []string{"rbind", "ro", "nosuid", "nodev"}
		mounts = append(mounts, map[string]any{"hostPath": outside, "containerPath": inside, "options": options})
	}
	for inside, outside := range p.Nodes {
		nodes = append(nodes, map[string]any{"hostPath": outside, "path": inside})
	}
	edits := map[string]any{"env": env, "mounts": mounts, "deviceNodes": nodes}
	device := map[string]any{"name": string(uid), "containerEdits": edits}
	spec := map[string]any{"cdiVersion": "0.6.0", "kind": kind, "devices": []any{device}}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	hidden := p.file(uid) + ".new" // containerd reads *.json and *.yaml alone
	if err := os.WriteFile(hidden, text, 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, p.file(uid))
}

func (p *plugin) file(uid types.UID) string {
	return filepath.Join(p.CDI, fmt.Sprintf("k8s.gpu.nvidia.com-claim_%s.json", uid))
}

func (p *plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	result := map[types.UID]error{}
	for _, claim := range claims {
		if result[claim.UID] = os.Remove(p.file(claim.UID)); os.IsNotExist(result[claim.UID]) {
			result[claim.UID] = nil
		}
	}
	return result, nil
}

func (p *plugin) HandleError(_ context.Context, err error, message string) {
	klog.ErrorS(err, message)
}

func run(ctx context.Context, file string) error {
	var own plugin
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &own.settings); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", own.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubeletplugin.KubeletPluginsDir, own.Driver)
	for _, folder := range []string{data, own.CDI} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, &own, kubeletplugin.DriverName(own.Driver),
		kubeletplugin.NodeName(own.Node), kubeletplugin.KubeClient(client))
	if err != nil {
		return err
	}
	defer helper.Stop()
	slices := []resourceslice.Slice{{Devices: own.Devices}}
	pools := map[string]resourceslice.Pool{own.Node: {Slices: slices}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) != 2 {
		klog.Exit("usage: draplugin SETTINGS.json")
	}
	if err := run(ctx, os.Args[1]); err != nil {
		klog.Exit(err)
	}
}
