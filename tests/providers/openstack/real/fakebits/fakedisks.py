"""A volume driver of cinder's without volumes, as cinder's own for its tests, that lets them grow, too."""

from cinder.tests.fake_driver import FakeLoggingVolumeDriver


class Disks(FakeLoggingVolumeDriver):
    def extend_volume(self, volume, new_size):
        """There is nothing that could grow."""
