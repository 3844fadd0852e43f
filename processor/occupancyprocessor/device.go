// SPDX-License-Identifier: Apache-2.0

package occupancyprocessor

import (
	"fmt"

	"github.com/gpuflight/gpuflight/internal/glob"
	"github.com/gpuflight/gpuflight/internal/occupancy"
)

// identity is what spans and their resource say about a device.
type identity struct {
	capability, name, id string
	// sms is the number of multiprocessors: 0 if nothing is said, -1 if what is said is no such
	// number.
	sms int64
}

// device is what is known about a device, from every source.
type device struct {
	identity
	// limits is nil where why says that no occupancy can be computed, and text says it to a person.
	limits *occupancy.Limits
	why    reason
	text   string
	// sms is 0 where smsWhy says that the number of multiprocessors is not known.
	sms    int64
	smsWhy reason
	// The peaks are in bytes per second, 0 if unknown. Those of the host's link and of NVLink are for
	// one direction, that of the device's memory is for both directions together.
	host, peer, memory float64
}

// resolve returns the properties of a device. Each property comes from the first source that has it:
// the span or its resource, the model table, the settings. No span has the peaks; for them, the
// settings come before the table. An invalid value is not replaced by that of a later source.
func resolve(of identity, settings []DeviceConfig) device {
	d := device{identity: of}
	m := modelOf(of.name)
	configured := settingsOf(of, settings)

	switch {
	case of.sms > 0:
		d.sms = of.sms
	case of.sms < 0:
		d.smsWhy = invalidSMCount
	case m.sms > 0:
		d.sms = m.sms
	case configured.SMCount > 0:
		d.sms = configured.SMCount
	default:
		d.smsWhy = missingSMCount
	}

	switch {
	case of.capability != "":
		capability, err := occupancy.ParseCapability(of.capability)
		if err == nil {
			d.limits, err = occupancy.LimitsOf(capability)
		}
		if err != nil {
			d.why, d.text = unknownCapability, fmt.Sprintf("No occupancy: %v.", err)
		}
	case m.capability != occupancy.Capability{}:
		d.limits, _ = occupancy.LimitsOf(m.capability) // a test looks all of them up
	case configured.ComputeCapability != "":
		capability, _ := occupancy.ParseCapability(configured.ComputeCapability) // Validate has
		d.limits, _ = occupancy.LimitsOf(capability)
	}
	if d.limits == nil && d.text == "" {
		d.why = missingCapability
		d.text = fmt.Sprintf("No occupancy: neither the span nor its resource tells the device's compute capability, "+
			"and no entry of the devices setting matches its name %.100q.", of.name)
	}

	d.memory = orElse(configured.MemoryBandwidth, m.memory*1e9)
	d.peer = orElse(configured.NVLinkBandwidth, m.nvlink*1e9)
	d.host = orElse(configured.PCIe.peak(), m.pcie.peak())
	return d
}

// settingsOf returns the configured properties of a device, each from the first entry that has it.
func settingsOf(of identity, settings []DeviceConfig) DeviceConfig {
	var out DeviceConfig
	for i := range settings {
		s := &settings[i]
		// The pattern * is for every device, also for one without a name and an id.
		if !glob.Match(s.Match, of.name) && !glob.Match(s.Match, of.id) {
			continue
		}
		if out.ComputeCapability == "" {
			out.ComputeCapability = s.ComputeCapability
		}
		out.SMCount = orElse(out.SMCount, s.SMCount)
		out.MemoryBandwidth = orElse(out.MemoryBandwidth, s.MemoryBandwidth)
		out.NVLinkBandwidth = orElse(out.NVLinkBandwidth, s.NVLinkBandwidth)
		out.PCIe = orElse(out.PCIe, s.PCIe)
	}
	return out
}

func orElse[T comparable](v, instead T) T {
	var zero T
	if v == zero {
		return instead
	}
	return v
}
