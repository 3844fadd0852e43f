// SPDX-License-Identifier: Apache-2.0

package probe

// Skip is a file, or a process with all its files, that is not observed.
type Skip struct {
	// Reason is one of the Skip constants.
	Reason string
	// UID is the user whose process it is. Path is the file as the process names it, or the process below /proc.
	UID  uint32
	Path string
	// Err says more; it may be nil.
	Err error
}

// Reasons of a [Skip].
const (
	// SkipUserShare and SkipTotalShare: files, bytes and time of one look, of the user and of all users.
	SkipUserShare  = "user_share"
	SkipTotalShare = "total_share"
	// SkipUserAttached and SkipTotalAttached: libraries that are attached to, of the user and of all users.
	SkipUserAttached  = "user_attached"
	SkipTotalAttached = "total_attached"
	// SkipUnresponsive: reading did not end in time, or earlier reads of the same user have not.
	SkipUnresponsive = "unresponsive"
	// SkipChanged: the path names another file, or none that is regular.
	SkipChanged = "changed"
	// SkipUntrusted: a user serves the file system.
	SkipUntrusted = "untrusted"
	// SkipUnreadable: opening it failed, for example for want of a capability.
	SkipUnreadable = "unreadable"
	// SkipMalformed: not a library, or larger than the limits.
	SkipMalformed = "malformed"
)
