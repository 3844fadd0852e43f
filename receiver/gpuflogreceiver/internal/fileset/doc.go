// SPDX-License-Identifier: Apache-2.0

// Package fileset finds GPU Flight's log files, knows them again under a new name or compression, and gives each
// channel of each session as one ordered stream of whole lines.
//
// A [Set] watches folders. Each [Group] in it is one flat base (<dir>/<base>.<channel>.log and its rotated files) or
// one session folder, and has one [Stream] per [gpuflog.Channel]. A stream is the concatenation of its windows in time order;
// a window is the data that the recorder wrote under one live name, whatever that data is called now:
//
//	flat    x.device.log → x.device.1.log → x.device.1.log.gz → x.device.2.log.gz …
//	C1      device.log → device.1.log → … and device.log → device.log.gz at the clean close
//	C2, C3  .tmp/device.log → .tmp/device.3.log → .tmp/device.3.log.gz → device.3.log.gz
//
// A window is recognised by an open handle's inode, by its number where the layout gives it one for life (C2, C3), and
// else by a hash of its first uncompressed bytes, so each byte is delivered once.
//
// The package knows names (by gpuflog.ParseFileName), bytes and newlines. It does not know what is in a line, stores
// nothing itself (the caller keeps what AppendState gives), and starts one goroutine, which only listens for inotify
// events.
//
// Concurrency: Scan, LoadState, AppendState and Close exclude everything else. Between two scans, streams may be read
// by several goroutines, each stream by one at a time.
//
// Time comes in through Scan; nothing here sleeps.
//
// One round of a reader, at every poll and after every wake-up:
//
//	changes := set.Scan(time.Now())
//	for _, g := range changes.Added { … g.LoadState(stored state of g.Key()) … }
//	for _, g := range set.Groups() {
//		if !g.Changed() {
//			continue
//		}
//		for _, s := range g.Streams() {
//			for {
//				chunk, buf, err = s.Next(buf)
//				… chunk.Data, chunk.Problems …
//				if chunk.AtEnd {
//					break
//				}
//			}
//		}
//	}
//
// A chunk may be empty before the end. What has to survive a crash is g.AppendState, and the Segments of what was read
// but not yet delivered: Reread gives the same bytes again.
package fileset
