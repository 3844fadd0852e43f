// SPDX-License-Identifier: Apache-2.0

// Package fileset finds GPU Flight's log files, recognizes them after a rename or compression, and
// reads each channel of each session as one ordered stream of complete lines.
//
// A [Set] watches folders. Each [Group] in it is one flat base (<dir>/<base>.<channel>.log and its
// rotated files) or one session folder, and has one [Stream] per [gpuflog.Channel]. A stream is the
// concatenation of its log files in time order. A log file is here the data that the recorder wrote
// under one live name, whatever the name of that data is now:
//
//	flat    x.device.log → x.device.1.log → x.device.1.log.gz → x.device.2.log.gz …
//	C1      device.log → device.1.log → … and device.log → device.log.gz at the clean close
//	C2, C3  .tmp/device.log → .tmp/device.3.log → .tmp/device.3.log.gz → device.3.log.gz
//
// A log file is recognized by the inode of an open handle, or by its number where the layout never
// changes it (C2, C3). Otherwise it is recognized by a hash of its first uncompressed bytes. So
// each byte is delivered once.
//
// The package handles names (by gpuflog.ParseFileName), bytes and newlines. It does not parse lines
// and stores nothing: the caller stores the result of AppendState. It starts one goroutine, which
// listens for inotify events.
//
// Concurrency: Scan, LoadState, AppendState and Close exclude all other calls. Between two scans,
// several goroutines may read streams, each stream by one at a time.
//
// The time is an argument of Scan; nothing in this package sleeps.
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
// A chunk may be empty before the end. To survive a crash, store g.AppendState and the Segments of
// data that was read but not delivered. Reread returns the same bytes again.
package fileset
