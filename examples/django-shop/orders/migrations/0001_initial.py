"""The table of orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("customer", models.EmailField(max_length=254)),
                ("pieces", models.PositiveIntegerField(default=1)),
                ("task", models.CharField(editable=False, max_length=64)),
                ("confirmed", models.DateTimeField(editable=False, null=True)),
            ],
        ),
    ]
